"""Finds, loads, checks, selects and calls plugins. Plugins themselves import `elastic_core.plugin` instead."""
