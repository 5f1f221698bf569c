"""Interfaces that plugins implement, and through which the core's packages use each other."""
