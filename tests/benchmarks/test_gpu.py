"""The GPU suite's decisions and files: sizes, verdicts, metadata, the JSON and its section in the docs."""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.gpu import checkout, kills, load, section, suite
from benchmarks.recovery import Try
from benchmarks.report import Row

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
PLENTY = 10**7


@pytest.mark.parametrize(
    ("cores", "files", "threads", "largest"),
    [
        (2, PLENTY, PLENTY, 1024),
        (16, PLENTY, PLENTY, 10_000),
        (16, 20_000, PLENTY, 6144),
        (16, PLENTY, 12_000, 4096),
        (1, 100, 100, 256),
    ],
)
def test_sizes_fit_cores_files_and_threads(cores, files, threads, largest):
    sizes = load.Bounds(cores, files, threads).sizes()
    assert sizes[-1] == largest
    assert sizes == [size for size in load.SIZES if size <= largest]


def looks(count=4, **changes):
    plain = {"templates": 1, "workers": 2, "templates_with_torch": 1, "templates_on_gpu": 0, "workers_on_gpu": 2}
    return [kills.Look(**{**plain, "used_mib": 500.0 + number, **changes}) for number in range(count)]


def verdicts(seen, kind="cuda", restarts=3, tries=3):
    arguments = argparse.Namespace(device=kind, restarts=restarts)
    rows = kills.warm_rows(seen, [Try("recovered", recovery_s=0.1, workers_s=0.1)] * tries, arguments)
    names = ("healed", "torch", "template", "workers", "first", "last")
    return {name: row.met for name, row in zip(names, rows, strict=True)}


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"templates_on_gpu": 1}, {"template"}),
        ({"workers_on_gpu": 1}, {"template", "workers"}),  # if workers cannot be seen, templates cannot either
        ({"templates_with_torch": 0}, {"torch"}),
    ],
)
def test_warm_verdict_follows_the_observations(changes, failed):
    assert {name for name, met in verdicts(looks(**changes)).items() if met is False} == failed


def test_growing_memory_fails_the_check():
    grown = [*looks(3), *looks(1, used_mib=500.0 + 2 * kills.GROWTH_MIB)]
    assert verdicts(grown)["last"] is False
    assert verdicts(looks(used_mib=None))["last"] is None


def test_restart_without_recovery_fails_the_check():
    assert verdicts(looks(), tries=2)["healed"] is False


def test_rehearsal_gives_no_verdict_on_contexts():
    found = verdicts(looks(workers_on_gpu=0, used_mib=None), kind="cpu")
    assert (found["template"], found["workers"], found["last"]) == (None, None, None)


def test_heal_is_met_only_if_every_kill_healed():
    arguments = argparse.Namespace(tries=1, try_limit=60.0)
    good, bad = Try("recovered", recovery_s=1.0, workers_s=0.1), Try("hung")
    healed = kills.healing_rows(1, {"cold": [good], "warm": [good]}, arguments)[0]
    hung = kills.healing_rows(1, {"cold": [good], "warm": [bad]}, arguments)[0]
    assert (healed.met, hung.met) == (True, False)
    assert healed.what == "1 worker, one killed: next step"


def row(met=None):
    return Row("it", "s", {"elastic": 1.0}, met=met).__dict__ | {"ratio": None}


@pytest.mark.parametrize(
    ("made", "in_time", "expected"),
    [
        ({"report": {"rows": [row(), row(True)]}}, True, ("passed", "")),
        ({"report": {"rows": [row(True), row(False)]}}, True, ("failed", "not met: it")),
        ({"report": {"rows": [row(True)]}}, False, ("timed out", "after 5 s; its rows until then are kept")),
        ({"report": None, "skipped": "no root"}, True, ("skipped", "no root")),
        ({"report": None, "error": "no worker"}, True, ("broken", "no worker")),
        ({}, True, ("broken", "it wrote nothing")),
    ],
)
def test_outcome_of_a_part_follows_its_rows(made, in_time, expected):
    assert suite.verdict(made, in_time, 5.0) == expected


def test_json_keeps_parts_that_did_not_run(tmp_path):
    path = tmp_path / "gpu.json"
    assert suite.kept(path) == {"suite": "gpu", "parts": {}}
    suite.write({"suite": "gpu", "parts": {"heal": {"outcome": "passed"}}}, path)
    assert suite.kept(path)["parts"] == {"heal": {"outcome": "passed"}}
    assert [one.name for one in tmp_path.iterdir()] == ["gpu.json"]
    path.write_text(json.dumps({"machine": {}, "reports": []}))
    assert suite.kept(path)["parts"] == {}


CPU = {"date": "2027-01-02T", "cores": 16, "memory_gib": 128, "kernel": "7.1.2", "python": "3.12", "load_before": 0.1}
GPU = {"gpus": [{"name": "GPU X", "memory_gib": 80.0}], "driver": "580.1", "cuda": "13.0", "nccl": "2.29"}
NONE = {"gpus": [], "cuda": None, "nccl": None}


def record(kind="cuda", outcome="passed", rows=True, why="", **facts):
    report = {"benchmark": "gpu x", "settings": {"backend": "nccl"}, "rows": [row(True)], "measurements": {}}
    return {
        "outcome": outcome,
        "why": why,
        "device": kind,
        "rehearsal": kind == "cpu",
        "seconds": 1.0,
        "machine": {**CPU, **(GPU if kind == "cuda" else NONE), **facts},
        "report": report if rows else None,
    }


def content(**parts):
    return {"suite": "gpu", "parts": parts}


def test_section_never_shows_a_rehearsal():
    text = section.section([content(heal=record("cpu"), rendezvous=record("none"))])
    assert "A worker on a GPU is killed" not in text
    assert "Not measured (rehearsed on a processor): `heal`." in text
    assert text.startswith(section.NOTHING)
    assert "### Rendezvous of many agents" in text and "GPU: none." in text


def test_section_prefers_figures_to_a_later_skip():
    skipped = record(outcome="skipped", rows=False, why="no CUDA device", **NONE)
    measured, later = content(heal=record()), content(heal=skipped, warm=skipped)
    assert "### A worker on a GPU is killed" in section.section([measured, later])
    assert "Not measured (no CUDA device): `warm`." in section.section([measured, later])
    assert "Not measured (no CUDA device): `heal`, `warm`." in section.section([later])


def test_machine_of_all_parts_is_described_once():
    text = section.section([content(heal=record(), warm=record(load_before=2))])
    assert text.count("GPU: GPU X (80.0 GiB), driver 580.1") == 1
    assert "load 0.1 to 2 at the start" in text.partition("###")[0]


def test_each_part_names_its_machine_if_they_differ():
    text = section.section([content(heal=record(), warm=record(cores=8))])
    assert "16 cores" in text.partition("### Warm")[0] and "8 cores" in text.partition("### Warm")[2]
    assert "cores" not in text.partition("###")[0]


def test_docs_have_the_markers_of_the_section():
    text = (ROOT / "docs" / "project" / "benchmarks.md").read_text()
    assert "| it [s] |" in section.with_section(text, [content(heal=record())])


def test_metadata_of_a_checkout_has_its_entry_points(tmp_path):
    for project in checkout.PROJECTS:
        checkout.describe(ROOT / project, tmp_path)
    found = {one.metadata["Name"]: one for one in metadata.distributions(path=[str(tmp_path)])}
    points = {point.name: point.value for point in found["elastic-c10d"].entry_points.select(group="elastic")}
    assert points == {"c10d": "elastic_c10d.plugin"}
    assert {"elastic-core", "elastic-etcd", "elastic-file-timer", "elastic-http-health", "elastic-sqlite"} <= set(found)
