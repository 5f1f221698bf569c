"""A short campaign: jobs on machines (network namespaces) face random but reproducible faults, and no rule may be
violated. `python -m benchmarks.campaign` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_testing.campaign import read
from elastic_testing.machines import missing

from benchmarks.campaign import WORLDS, Shape, conduct, storm_of

pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(missing()), reason=missing())]
STORIES = Path(__file__).with_name("stories")
EACH_COMMIT = (
    "c10d+listed=2.a_store_that_others_have_come_to_is_used_at_once",
    "c10d.an_agent_is_killed_after_its_guardian",
    "etcd.a_member_is_told_to_end_twice",
)
"""Stories that take seconds. The nightly tier runs the rest."""


def stories():
    for path in sorted(STORIES.glob("*.json")):
        yield pytest.param(path, id=path.stem, marks=[] if path.stem in EACH_COMMIT else pytest.mark.nightly)


def check_survived(shape, seed, storm, folder):
    made = conduct(shape, seed, storm, folder)
    assert made.violations == []
    last = storm[-1].faults[0].kind == "done"  # no training remains after that
    assert made.reached == len(storm) - last
    return made


def test_job_survives_twenty_faults(tmp_path):
    shape = Shape("c10d", nodes=3, secret=True, warm=False, names=True)
    made = check_survived(shape, "20", storm_of(shape, "20", 20, most_s=3.0), tmp_path)
    assert sum(made.faults.values()) >= 18


@pytest.mark.parametrize("story", list(stories()))
def test_recorded_faults_are_survived(story, tmp_path):
    """The file name gives the world and the job's other properties."""
    world, *like = story.stem.partition(".")[0].replace("-", " ").split("+")
    more = {name: int(value or 1) for name, _, value in (word.partition("=") for word in like)}
    plain = {"nodes": 3, "secret": False, "warm": False, "names": False}
    check_survived(Shape(world, **{**plain, **more}), story.stem, read(story), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("world", [world for world in WORLDS if world != "sqlite"])  # tested in examples/
def test_job_survives_a_long_fault_storm(world, tmp_path):
    """About three minutes per world."""
    shape = Shape.drawn(world, "nightly")
    check_survived(shape, "nightly", storm_of(shape, "nightly", 60, most_s=20.0), tmp_path)
