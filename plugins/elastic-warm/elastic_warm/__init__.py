"""Warm start: workers are forked from a template process that has already imported their modules."""
