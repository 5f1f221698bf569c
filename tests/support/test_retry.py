"""Concurrent changes of a shared value."""

from __future__ import annotations

import pytest

from elastic_core.clock import swapped
from elastic_core.errors import RendezvousConnectionError


def test_writer_that_always_loses_gives_up():
    tries = []
    message = "^the state: could not write within 4 attempts, because other writers were always faster$"
    with pytest.raises(RendezvousConnectionError, match=message):
        swapped(lambda: tries.append(1), 4, "the state")
    assert len(tries) == 4
