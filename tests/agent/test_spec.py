from __future__ import annotations

import functools

import pytest

from elastic_core.agent import WorkerSpec

UNNAMED = functools.partial(print, "x")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"local_world_size": 0}, "at least one worker on the node, found 0"),
        ({"max_restarts": -1}, "max_restarts of 0 or more, found -1"),
        ({"monitor_interval": -0.1}, "monitor_interval of 0 s or more, found -0.1"),
    ],
)
def test_out_of_range_values_are_rejected(wrong, message, scripted_handler):
    with pytest.raises(ValueError, match=message):
        WorkerSpec(**{"role": "default", "local_world_size": 1, "rdzv_handler": scripted_handler(), **wrong})


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [(len, "len"), ("train.py", "train.py"), (None, "<none>"), (UNNAMED, repr(UNNAMED))],
)
def test_entry_point_name_is_found(entrypoint, name, scripted_handler):
    assert WorkerSpec("default", 1, scripted_handler(), entrypoint).get_entrypoint_name() == name
