"""Warm start: workers that are forked from a process which has imported what they import."""
