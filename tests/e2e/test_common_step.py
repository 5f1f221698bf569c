"""However a job or a node is asked to stop, all workers save after the same step."""

from __future__ import annotations

import json
import signal

import pytest
from job_of_nodes import eventually, kill

pytestmark = pytest.mark.integration

TERM = 128 + signal.SIGTERM

# Each rank has its own pace. After a stop, the job resumes at the step that was saved.
TRAIN = """
import json, os, pathlib, random, sys, time
import elastic_core

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
saved = pathlib.Path("saved")
step = max([json.loads(line)["step"] for line in saved.read_text().splitlines()], default=0) if saved.exists() else 0
while not elastic_core.should_stop(step):
    if step % 10 == 0:
        pathlib.Path(f"step-{sys.argv[1]}-{os.environ['LOCAL_RANK']}-of-{world}").touch()
    time.sleep(random.uniform(0.001, 0.02))
    if pathlib.Path(f"finish-{sys.argv[1]}").exists():
        sys.exit()
    if (rank, os.environ.get("DEAF")) == (1, "1"):
        time.sleep(3600)
    step += 1
time.sleep(0.1)
while os.environ.get("HELD") and not pathlib.Path("save").exists():
    time.sleep(0.05)
left = elastic_core.stop_deadline()
line = {"round": os.environ["MASTER_PORT"], "world": world, "rank": rank, "step": step, "left": left}
with saved.open("a") as file:
    file.write(json.dumps(line) + "\\n")
if os.environ.get("LINGERS"):
    elastic_core.stopped(step)
    time.sleep(3600)
"""


@pytest.fixture
def train(elastic):
    return elastic.script("train.py", TRAIN)


def saves(elastic):
    """The lines that workers have saved, by round, in order of time."""
    path = elastic.cwd / "saved"
    rounds = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        found = json.loads(line)
        rounds.setdefault(found["round"], []).append(found)
    return list(rounds.values())


def assert_common(lines, world):
    """All workers of the round have saved the same step, within their grace period."""
    assert sorted(line["rank"] for line in lines) == list(range(world))
    assert len({line["step"] for line in lines}) == 1
    assert all(line["left"] > 0 for line in lines)


def training(elastic, names, world):
    """Wait until both workers of these nodes train in a round with so many workers."""
    for name in names:
        for local in range(2):
            path = elastic.cwd / f"step-{name}-{local}-of-{world}"
            eventually(path.exists, f"worker {local} of {name} to train with {world}")


@pytest.mark.parametrize(
    ("signum", "flags", "multiple"),
    [
        (signal.SIGTERM, [], 1),
        (signal.SIGINT, ["--stop-at-multiple=50"], 50),
        (signal.SIGTERM, ["--warm-start"], 1),
    ],
)
def test_workers_of_one_node_save_the_same_step(elastic, train, signum, flags, multiple):
    agent = elastic.start("run", "--nproc-per-node=2", *flags, train, "a")
    training(elastic, "a", 2)
    agent.send_signal(signum)
    assert elastic.finish(agent).code == 128 + signum
    (lines,) = saves(elastic)
    assert_common(lines, 2)
    assert lines[0]["step"] % multiple == 0


def test_worker_that_has_saved_need_not_exit(elastic, train):
    agent = elastic.start("run", "--nproc-per-node=2", "--shutdown-timeout=3600", train, "a", LINGERS="1")
    training(elastic, "a", 2)
    agent.send_signal(signal.SIGTERM)
    assert elastic.finish(agent).code == TERM
    (lines,) = saves(elastic)
    assert_common(lines, 2)


def test_worker_that_does_not_ask_is_named_and_stopped(elastic, train):
    agent = elastic.start("run", "--nproc-per-node=2", "--shutdown-timeout=2", train, "a", DEAF="1")
    eventually((elastic.cwd / "step-a-0-of-2").exists, "rank 0 to train")
    agent.send_signal(signal.SIGTERM)
    ended = elastic.finish(agent)
    assert ended.code == TERM
    assert "workers have not saved: local_ranks=1" in ended.err
    assert [[line["rank"] for line in lines] for lines in saves(elastic)] == [[0]]


def test_failed_worker_gives_the_others_no_time_to_save(elastic, job, train):
    agent = job.agent("a", "--nproc-per-node=2", "--nnodes=1", "--max-restarts=0", script=train)
    training(elastic, "a", 2)
    pids = [int(text) for text in agent.err.partition("pids=")[2].split()[0].split(",")]
    kill(pids[0])
    assert agent.code() == 1
    assert saves(elastic) == []


def two_nodes(job, elastic, train):
    agents = job.agents("a b", "--nnodes=1:2", "--nproc-per-node=2", script=train)
    training(elastic, "ab", 4)
    for path in elastic.cwd.glob("step-*-of-2"):  # from a round of the first node alone
        path.unlink()
    return agents


@pytest.mark.torch
def test_other_nodes_save_the_same_step_and_resume_there(any_job, elastic, train):
    a, b = two_nodes(any_job, elastic, train)
    b.signal(signal.SIGTERM)
    assert b.code() == TERM
    training(elastic, "a", 2)
    a.signal(signal.SIGTERM)
    assert a.code() == TERM
    *_, both, alone = saves(elastic)
    assert_common(both, 4)
    assert_common(alone, 2)
    assert alone[0]["step"] > both[0]["step"]
    assert "no common step" not in a.err + b.err


@pytest.mark.torch
@pytest.mark.parametrize("any_job", ["etcd"], indirect=True)
def test_all_nodes_save_before_another_one_joins(any_job, elastic, train):
    a = any_job.agent("a", "--nnodes=1:2", "--nproc-per-node=2", script=train)
    training(elastic, "a", 2)
    b = any_job.agent("b", "--nnodes=1:2", "--nproc-per-node=2", script=train)
    training(elastic, "ab", 4)
    assert_common(saves(elastic)[0], 2)
    for agent in (a, b):
        agent.signal(signal.SIGTERM)
    assert [a.code(), b.code()] == [TERM, TERM]
    assert_common(saves(elastic)[-1], 4)


@pytest.mark.torch
@pytest.mark.parametrize(("any_job", "first"), [("c10d", "a"), ("etcd", "b")], indirect=["any_job"])
def test_workers_save_although_those_of_another_node_have_finished(any_job, elastic, train, first):
    agents = dict(zip("ab", two_nodes(any_job, elastic, train), strict=True))
    finished, other = agents.pop(first), *agents.values()
    (elastic.cwd / f"finish-{first}").touch()
    finished.says('still waiting: waiting_for="the workers of other nodes to succeed"')
    other.signal(signal.SIGTERM)
    assert other.code() == TERM
    (lines,) = [some for some in saves(elastic) if some[0]["world"] == 4]
    assert sorted(line["rank"] for line in lines) in ([0, 1], [2, 3])
    assert len({line["step"] for line in lines}) == 1
    assert "no common step" not in other.err
    finished.signal(signal.SIGTERM)
    finished.code()


@pytest.mark.torch
@pytest.mark.parametrize("any_job", ["c10d"], indirect=True)
def test_status_shows_which_workers_have_saved(any_job, elastic, train):
    a, b = any_job.agents("a b", "--nnodes=2", "--nproc-per-node=2", "--shutdown-timeout=240", script=train, HELD="1")
    training(elastic, "ab", 4)
    b.signal(signal.SIGTERM)
    looks = iter(range(1000))

    def shown():
        look = any_job.command(f"status-{next(looks)}", "status", "--json", *any_job.where)
        assert look.code() == 0, look.err
        stops = [node["stop"] for node in json.loads(look.out)["members"]]
        return stops if all(stops) else None

    first, second = eventually(shown, "status to show the step of both nodes")
    assert (first["saved"], sorted([*first["unsaved"], *second["unsaved"]])) == ([], [0, 1, 2, 3])
    (elastic.cwd / "save").touch()
    assert b.code() == TERM
    a.signal(signal.SIGTERM)
    assert a.code() == TERM
    assert {line["step"] for line in saves(elastic)[0]} == {first["step"]} == {second["step"]}


@pytest.mark.torch
@pytest.mark.parametrize(("any_job", "command"), [("etcd", ["drain", "b"]), ("c10d", ["stop"])], indirect=["any_job"])
def test_commands_let_all_nodes_save_the_same_step(any_job, elastic, train, command):
    a, b = two_nodes(any_job, elastic, train)
    assert any_job.command("command", *command, *any_job.where).code() == 0
    assert b.code() == 9
    if command == ["stop"]:
        assert a.code() == 9
    else:
        training(elastic, "a", 2)
        a.signal(signal.SIGTERM)
        assert a.code() == TERM
    assert_common(next(lines for lines in saves(elastic) if lines[0]["world"] == 4), 4)
