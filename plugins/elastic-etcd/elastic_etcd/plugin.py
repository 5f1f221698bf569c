"""What the plugin registers. Importing this imports neither grpc nor etcd3 nor torch."""
