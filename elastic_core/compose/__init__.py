"""The composition root, the only package that imports all others.

This package selects the components that a run uses, builds one agent's objects, and stops them in reverse order."""
