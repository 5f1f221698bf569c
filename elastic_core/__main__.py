"""`python -m elastic_core run ...` is `elastic run ...`."""

if __name__ == "__main__":
    import sys

    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        del sys.path[0]  # the current directory, in which others may have put files with the names of our modules

    from elastic_core.cli import entry_point

    entry_point()
