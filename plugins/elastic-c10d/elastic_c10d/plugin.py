"""What the plugin registers."""
