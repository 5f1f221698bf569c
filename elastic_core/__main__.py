"""Makes `python -m elastic_core run ...` equivalent to `elastic run ...`."""

if __name__ == "__main__":
    from elastic_core.cli import entry_point

    entry_point()
