"""Compatibility with torch's launcher: replacements for its modules and functions, support for rendezvous backends that
have only `get_state` and `set_state`, support for stores as backends, and the plugin names that torchrun users
expect."""
