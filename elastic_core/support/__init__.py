"""Helpers that several packages and plugins use."""
