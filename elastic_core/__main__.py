"""`python -m elastic_core run ...` is `elastic run ...`."""

from elastic_core.cli import entry_point

if __name__ == "__main__":
    entry_point()
