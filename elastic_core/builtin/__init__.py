"""The plugins that come with the core. They are registered like every other plugin."""
