"""Concurrent changes of a shared value."""

from __future__ import annotations

import pytest

from elastic_core.clock import TooManyRefusals, swapped


def test_writer_that_always_loses_gives_up():
    tries = []
    with pytest.raises(TooManyRefusals, match="within 4 attempts, because other writers were always faster"):
        swapped(lambda: tries.append(1), attempts=4)
    assert len(tries) == 4
