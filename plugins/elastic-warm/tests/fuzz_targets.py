"""Fuzz targets of elastic-warm. See `tests/fuzz/targets.py`."""

from __future__ import annotations

import json
from contextlib import suppress

from elastic_warm import learned_imports
from fuzz.targets import DEEP, target


@target(
    (),
    b'{"format": 1, "modules": {}, "left": {}, "seconds": 1, "environment": {}, "without": [], "varying": []}',
    b'{"format": 1, "seconds": 1' + b"0" * 400 + b"}",
    DEEP,
)
def warm_cache(data):
    """What an earlier run has recorded for the warm start."""
    with suppress(UnicodeDecodeError):
        learned_imports.from_json(data.decode("ascii"))


@target((), b"0\t1\tnumpy\t/usr/lib/numpy.py", b"1\t0\tnumpy\t\n7\t7\t__main__\tx")
def warm_lines(data):
    """The workers' reports of their imports."""
    known = learned_imports.LearnedImports()
    for line in data.split(b"\n"):
        known.hear(line.decode("utf-8", "surrogateescape"), 1)
    json.loads(known.as_json({}, (), ()))
