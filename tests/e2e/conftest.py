"""The fixtures of end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # helper modules are next to the tests that use them
sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks`

from running import any_job, elastic, etcd_endpoint, job, machines, read_fifo

__all__ = ["any_job", "elastic", "etcd_endpoint", "job", "machines", "read_fifo"]
