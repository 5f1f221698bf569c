"""Compatibility with torch's launcher: replacements for its modules and functions, support for two-method rendezvous
backends and for stores as backends, and the plugin names that torchrun users expect."""
