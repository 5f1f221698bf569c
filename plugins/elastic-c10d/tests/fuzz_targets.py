"""Fuzz targets of elastic-c10d. See `tests/fuzz/targets.py`."""

from __future__ import annotations

from elastic_c10d.endpoint import parse_endpoints
from fuzz.targets import target, text_of

from elastic_core.errors import ConfigurationError


@target((ConfigurationError,), b"node7:29400", b"a:1, b:2 ,[::1]", b"localhost:0")
def c10d_endpoint(data):
    str(parse_endpoints(text_of(data)))
