"""Helpers used by several packages and by plugins."""
