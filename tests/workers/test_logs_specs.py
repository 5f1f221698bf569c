"""A log placement plugin written for torchrun, one of our own make and torch's own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

from elastic_core.errors import PluginError
from elastic_core.workers.logs_specs import GROUP, installed_points, load_placer
from elastic_core.workers.streams import Stream

ENVIRONMENTS = {
    rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    for rank in range(2)
}


@dataclass
class Destinations:
    stdouts: dict = field(default_factory=dict)
    stderrs: dict = field(default_factory=dict)
    tee_stdouts: dict = field(default_factory=dict)
    tee_stderrs: dict = field(default_factory=dict)
    error_files: dict = field(default_factory=dict)


class Flat:
    """All files in one folder; rank 0 also on the console."""

    def __init__(self, log_dir, redirects, tee, local_ranks_filter):
        self.log_dir, self.asked = log_dir, (redirects, tee, local_ranks_filter)

    def reify(self, envs):
        files = {rank: f"{self.log_dir}/{variables['RANK']}.log" for rank, variables in envs.items()}
        errors = {rank: f"{self.log_dir}/{rank}.json" for rank in envs}
        return Destinations(files, {0: ""}, {0: files[0], 1: os.devnull}, {}, errors)


class Broken:
    def __init__(self, **asked):
        pass

    def reify(self, envs):
        raise RuntimeError("no folder")


def points(**classes):
    return {name: EntryPoint(name, f"{__name__}:{cls}", GROUP) for name, cls in classes.items()}


def test_the_plugins_files_are_used(tmp_path):
    placement = load_placer("flat", points(flat="Flat"), tmp_path, "3", "0:1", frozenset())(ENVIRONMENTS)
    assert placement.files == {(0, Stream.OUT): f"{tmp_path}/0.log", (1, Stream.OUT): f"{tmp_path}/1.log"}
    assert placement.teed == {(0, Stream.OUT)}
    assert placement.error_files == {0: f"{tmp_path}/0.json", 1: f"{tmp_path}/1.json"}


def test_an_unknown_name_lists_the_known(tmp_path):
    with pytest.raises(PluginError, match="flat"):
        load_placer("falt", points(flat="Flat"), tmp_path, "0", "0", frozenset())


@pytest.mark.parametrize("cls", ["Nowhere", "Destinations"])
def test_one_that_cannot_be_made_is_named(tmp_path, cls):
    with pytest.raises(PluginError, match="'bad'"):
        load_placer("bad", points(bad=cls), tmp_path, "0", "0", frozenset())


def test_one_that_cannot_answer_is_named(tmp_path):
    placer = load_placer("bad", points(bad="Broken"), tmp_path, "0", "0", frozenset())
    with pytest.raises(PluginError, match="no folder"):
        placer(ENVIRONMENTS)


@pytest.mark.torch
def test_torchs_own_default(tmp_path):
    placer = load_placer("default", installed_points(), tmp_path, "3", "1:1", frozenset({1}))
    placement = placer(ENVIRONMENTS)
    assert placement.files[0, Stream.ERR].endswith("/attempt_0/0/stderr.log")
    assert placement.files[1, Stream.OUT].endswith("/attempt_0/1/stdout.log")
    assert placement.teed == {(1, Stream.OUT)}
    assert placement.error_files[1].endswith("/attempt_0/1/error.json")
