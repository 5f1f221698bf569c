"""Concurrent changes of a shared value."""

from __future__ import annotations

import pytest

from elastic_core.support.retry import TooManyRefusals, swapped


def test_writer_that_always_loses_gives_up():
    tries = []
    with pytest.raises(TooManyRefusals, match="to write within 4 attempts, found that others always did so first"):
        swapped(lambda: tries.append(1), attempts=4)
    assert len(tries) == 4
