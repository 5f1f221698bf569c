"""Fuzz target of elastic-doctor. See `tests/fuzz/targets.py`."""

from __future__ import annotations

from elastic_doctor import peers
from fuzz.targets import DEEP, target

from elastic_core.text import printable


@target(
    (),
    peers.encoded(peers.Announcement("a", "10.0.0.1", 1, {"python": "3"})),
    b'{"version": 1, "port": Infinity}',
    DEEP,
)
def card(data):
    """The announcements that doctors exchange."""
    found = peers.decoded(data)
    assert found is None or all(map(printable, (found.name, found.address)))
