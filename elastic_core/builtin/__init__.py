"""What comes with the core, by the same door as every plugin."""
