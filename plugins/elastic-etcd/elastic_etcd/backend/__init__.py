"""The backend `etcd`. The state is one key, each entry is a key with a lease, and watches push changes."""
