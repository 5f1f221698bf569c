"""torchrun's log placement plugins: a custom one and torch's default."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

from elastic_core.config import Std
from elastic_core.errors import PluginError
from elastic_core.workers.logs_specs import GROUP, DefaultLogsSpecs, installed_points, load_placer, placer_of, to_map
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


def test_files_chosen_by_the_plugin_are_used(tmp_path):
    placement = load_placer("flat", points(flat="Flat"), tmp_path, "3", "0:1", frozenset())(ENVIRONMENTS)
    assert placement.files == {(0, Stream.OUT): f"{tmp_path}/0.log", (1, Stream.OUT): f"{tmp_path}/1.log"}
    assert placement.teed == {(0, Stream.OUT)}
    assert placement.error_files == {0: f"{tmp_path}/0.json", 1: f"{tmp_path}/1.json"}


def test_unknown_plugin_lists_known_names(tmp_path):
    with pytest.raises(PluginError, match="flat"):
        load_placer("falt", points(flat="Flat"), tmp_path, "0", "0", frozenset())


@pytest.mark.parametrize("cls", ["Nowhere", "Destinations"])
def test_plugin_that_cannot_be_created_is_named(tmp_path, cls):
    with pytest.raises(PluginError, match="'bad'"):
        load_placer("bad", points(bad=cls), tmp_path, "0", "0", frozenset())


def test_reify_error_becomes_plugin_error(tmp_path):
    placer = load_placer("bad", points(bad="Broken"), tmp_path, "0", "0", frozenset())
    with pytest.raises(PluginError, match="no folder"):
        placer(ENVIRONMENTS)


@pytest.mark.torch
def test_torch_default_specs_place_files(tmp_path):
    placer = load_placer("default", installed_points(), tmp_path, "3", "1:1", frozenset({1}))
    placement = placer(ENVIRONMENTS)
    assert placement.files[0, Stream.ERR].endswith("/attempt_0/0/stderr.log")
    assert placement.files[1, Stream.OUT].endswith("/attempt_0/1/stdout.log")
    assert placement.teed == {(1, Stream.OUT)}
    assert placement.error_files[1].endswith("/attempt_0/1/error.json")


def test_std_is_parsed_and_mapped_by_rank():
    assert Std.from_str("0:3,1:1") == {0: Std.ALL, 1: Std.OUT}
    assert Std.from_str("2") is Std.ERR
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.ERR}, 2) == {0: Std.NONE, 1: Std.ERR}
    with pytest.raises(ValueError, match="'7'"):
        Std.from_str("7")


class TestPlaces:
    """The files of `DefaultLogsSpecs`, compared with torch's."""

    @pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.torch)])
    def kinds(self, request):
        if request.param == "ours":
            return DefaultLogsSpecs, Std
        from torch.distributed.elastic import multiprocessing

        return multiprocessing.DefaultLogsSpecs, multiprocessing.Std

    def test_files_are_placed_per_attempt_and_rank(self, kinds, tmp_path):
        make, std = kinds
        found = make(str(tmp_path), {0: std.OUT}, std.ERR, {0}).reify(ENVIRONMENTS)
        (folder,) = tmp_path.glob("job_*/attempt_0")
        assert found.stdouts == {0: f"{folder}/0/stdout.log", 1: os.devnull}
        assert found.stderrs == {0: f"{folder}/0/stderr.log", 1: f"{folder}/1/stderr.log"}
        assert (found.tee_stdouts, found.tee_stderrs) == ({}, {0: f"{folder}/0/stderr.log"})
        assert found.error_files == {0: f"{folder}/0/error.json", 1: f"{folder}/1/error.json"}
        assert found.filtered_stdout == f"{folder}/filtered_stdout.log"
        assert found.filtered_stderr == f"{folder}/filtered_stderr.log"

    def test_all_rounds_of_one_object_share_a_folder(self, kinds, tmp_path):
        make, std = kinds
        specs = make(str(tmp_path), std.ALL)
        for attempt in ("0", "1"):
            specs.reify({0: {**ENVIRONMENTS[0], "TORCHELASTIC_RESTART_COUNT": attempt}})
        assert sorted(path.name for path in tmp_path.glob("job_*/*")) == ["attempt_0", "attempt_1"]
        assert specs.root_log_dir == str(tmp_path)
        assert str(tmp_path) in repr(specs)

    def test_log_dir_that_is_a_file_raises_not_a_directory(self, kinds, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match="file"):
            kinds[0](str(tmp_path / "file"))

    def test_devnull_log_dir_creates_no_files(self, kinds):
        make, std = kinds
        placement = placer_of(make(os.devnull, std.ALL))(ENVIRONMENTS)
        assert (placement.files, placement.error_files) == ({}, {})


def test_repeated_restart_count_keeps_earlier_output(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    with open(specs.reify(ENVIRONMENTS).stdouts[0], "w") as file:
        file.write("round 1\n")
    with open(specs.reify(ENVIRONMENTS).stdouts[0]) as file:
        assert file.read() == "round 1\n"


def test_filtered_lines_go_to_filtered_files(tmp_path):
    found = placer_of(DefaultLogsSpecs(str(tmp_path), Std.OUT))(ENVIRONMENTS)
    assert {stream: path.rpartition("/")[2] for stream, path in found.filtered.items()} == {
        Stream.OUT: "filtered_stdout.log",
        Stream.ERR: "filtered_stderr.log",
    }
