"""Runs `elastic` and writes which functions of it were called, in order: one `path:qualified name` per line, the core's
and its plugins'.

Usage: python tracing.py FILE ARGUMENTS_OF_ELASTIC
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from pathlib import Path

OURS = re.compile(r".*/(elastic_\w+/.+\.py)")


def main(target, argv):
    calls = target.open("w", buffering=1)

    def note(frame, event, _):
        code = frame.f_code
        of_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if event == "call" and of_function and (ours := OURS.fullmatch(code.co_filename)):
            calls.write(f"{ours[1]}:{code.co_qualname}\n")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from elastic_core.cli import main as elastic

        return elastic(argv)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
