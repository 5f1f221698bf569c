"""The built-in plugins, registered like any other plugin."""
