"""A store in a process of its own, which outlives every node of the job."""

from __future__ import annotations

from elastic_c10d.server import StoreServer

__all__ = ["StoreServer"]
