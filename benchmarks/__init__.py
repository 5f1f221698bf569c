"""Measurements of elastic-core side by side with torchrun. Not part of the tests; see README.md."""
