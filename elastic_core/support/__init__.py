"""Helpers that several rooms and plugins use, each written once."""
