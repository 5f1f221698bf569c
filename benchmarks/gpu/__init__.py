"""Checks and figures for a machine with a GPU: `python -m benchmarks.gpu --help`."""
