from __future__ import annotations

import functools

import pytest

from elastic_core.agent import WorkerSpec


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"local_world_size": 0}, "at least one worker on the node, found 0"),
        ({"max_restarts": -1}, "max_restarts of 0 or more, found -1"),
        ({"monitor_interval": -0.1}, "monitor_interval of 0 s or more, found -0.1"),
    ],
)
def test_bounds(wrong, message, scripted_handler):
    with pytest.raises(ValueError, match=message):
        WorkerSpec(**{"role": "default", "local_world_size": 1, "rdzv_handler": scripted_handler(), **wrong})


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        (len, "len"),
        ("train.py", "train.py"),
        (None, "<none>"),
    ],
)
def test_the_name_of_the_entry_point(entrypoint, name, scripted_handler):
    assert WorkerSpec("default", 1, scripted_handler(), entrypoint).get_entrypoint_name() == name


def test_an_entry_point_without_a_name(scripted_handler):
    entrypoint = functools.partial(print, "x")
    assert WorkerSpec("default", 1, scripted_handler(), entrypoint).get_entrypoint_name() == repr(entrypoint)
