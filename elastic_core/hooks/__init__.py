"""Plugins: how they are found, loaded, checked, selected and called. Plugins import `elastic_core.plugin` instead."""
