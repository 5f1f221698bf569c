"""The campaign checker on a healthy history, and on histories with planted violations."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from elastic_testing import campaign
from elastic_testing.campaign import KINDS, RULES, Fault, FaultWave, History, Setting, check, draw, smaller
from elastic_testing.campaign.faults import Faults, meant


class Story:
    """Writes the events of a healthy job with two nodes, `a` and `b`, to which tests add violations."""

    def __init__(self):
        self.events = []
        self.at = 0.0
        self.step = 0
        self.pids = iter(range(100, 1000))
        self.workers = []

    def record(self, what, after=0.1, **more):
        self.at += after
        self.events.append({"at": round(self.at, 3), "wall": self.at, "what": what, **more})
        return self.events[-1]

    def round(self, port, restart=0, world=2, nodes="ab"):
        """A round that forms, trains two steps, and saves the last one."""
        self.port = port
        self.workers = [next(self.pids) for _ in nodes]
        for rank, (pid, node) in enumerate(zip(self.workers, nodes, strict=True)):
            self.record("start", pid=pid, node=node, rank=rank, local=0, world=world, restart=restart, at_port=port)
        for rank, pid in enumerate(self.workers):
            self.record("met", pid=pid, group=port, rank=rank, world=world, step=self.step)
        self.step += 1
        for rank, pid in enumerate(self.workers):
            self.record("step", pid=pid, group=port, rank=rank, step=self.step, sum=3)
        self.steps()

    def steps(self):
        self.step += 1
        self.record("step", pid=self.workers[0], group=self.port, rank=0, step=self.step, sum=3)
        self.record("saved", pid=self.workers[0], group=self.port, step=self.step)

    def again(self, port, restart, **more):
        """The agents stop the workers, and another round forms."""
        for pid in self.workers:
            self.stopped(pid)
        self.round(port, restart, **more)

    def wave(self, number, kind="worker_kill", pid=None, missed=False, **more):
        fault = Fault(kind, 1, **more)
        self.record("wave", number=number, faults=[asdict(fault)], quiet_s=0.1)
        self.record("fault", number=number, fault=0, kind=kind, place=1, pid=pid, missed=missed)
        self.record("fault over", number=number, fault=0)

    def whole(self, number, alive=()):
        self.record("whole", number=number, alive=sorted(alive or self.workers), recovery_s=0.1, healed_s=0.1)

    def stopped(self, pid):
        """The agent stops the worker with SIGTERM."""
        self.record("signal", pid=pid, signum=15)

    def agent_ended(self, node, code, *expected, **more):
        self.record("agent ended", node=node, place=0, pid=1, code=code, expected=list(expected), last="", **more)

    def violations(self):
        return check(History(self.events))


@pytest.fixture
def story():
    """A round, the loss of a worker, and another round."""
    made = Story()
    made.round("x:1")
    made.wave(0, pid=made.workers[1])
    made.stopped(made.workers[0])
    made.round("x:2", restart=1)
    made.whole(0)
    return made


def rules(story):
    return {violation.rule for violation in story.violations()}


def test_healthy_history_has_no_violations(story):
    for node in "ab":
        story.agent_ended(node, 0, 0)
    story.record("finished")
    assert story.violations() == []


def test_worker_stopped_before_its_report_is_ignored(story):
    story.stopped(4711)
    story.record("end", pid=4711, code=-15)
    assert rules(story) == set()


def test_violation_names_its_time_and_wave(story):
    story.wave(1, "status")
    story.agent_ended("a", 1)
    [violation] = story.violations()
    assert (violation.rule, violation.wave) == ("exit code", 1)
    assert violation.at == pytest.approx(story.at)


def two_active_groups(story):
    story.record("step", pid=100, group="x:1", rank=0, step=9, sum=3)


def checkpoint_by_an_old_round(story):
    """As by a worker that ends late after SIGTERM."""
    story.record("saved", pid=100, step=9)


def stops_at_different_steps(story):
    for rank, step in enumerate((4, 5)):
        story.record("stopped", pid=story.workers[rank], group=story.port, rank=rank, step=step)


def step_after_the_stop(story):
    story.record("stopped", pid=story.workers[1], group=story.port, rank=1, step=story.step)
    story.steps()


def duplicate_rank(story):
    story.record("twice", pid=story.workers[0], rank=0, others=2)


def rank_beyond_world_size(story):
    story.wave(1)
    story.round("x:3", restart=2, world=1)


def conflicting_world_sizes(story):
    story.wave(1)
    story.round("x:3", restart=2)
    next(event for event in story.events if event.get("at_port") == "x:3")["world"] = 3


def duplicate_node(story):
    story.wave(1)
    story.round("x:3", restart=2, nodes="aa")


def round_without_a_cause(story):
    story.wave(1, "worker_stop", lasts_s=5.0)
    story.round("x:3", restart=1)


def unnoticed_loss(story):
    story.wave(1, "agent_kill")


def harmless_fault_that_costs_a_round(story):
    story.wave(1, "agent_stop", lasts_s=0.5)
    story.round("x:3", restart=1)


def newcomer_that_replaces_a_member(story):
    story.wave(1)
    story.again("x:3", 2, nodes="ac")


def loss_blamed_much_later(story):
    story.agent_ended("more", -9, -9)
    story.at += 60
    story.wave(1, "agent_kill")
    story.record("logged", event="restart decided", cause="node lost", reason="lost more: no beat for 5 s", node="a")
    story.again("x:3", 1)


def many_rounds_before_any_fault(story):
    made = Story()
    for number in range(3):
        made.round(f"y:{number}")
    story.events[:0] = [{**event, "at": event["at"] - 100, "pid": event["pid"] + 5000} for event in made.events]


def failure_counted_twice(story):
    story.wave(1)
    story.round("x:3", restart=3)


def failure_not_counted(story):
    story.wave(1)
    story.round("x:3", restart=1)


def loss_counted_as_a_failure(story):
    story.wave(1, "agent_kill")
    story.round("x:3", restart=2)


def worker_ended_without_a_cause(story):
    story.wave(1, "agent_kill")
    story.round("x:3", restart=1)  # the old workers got no SIGTERM, although agent `a` lives
    story.whole(1)


def old_worker_next_to_new_ones(story):
    story.wave(1)
    old = story.workers
    story.round("x:3", restart=2)
    story.whole(1, alive=[*old, *story.workers])


def lost_checkpoint(story):
    story.wave(1)
    for pid in story.workers:
        story.stopped(pid)
    story.step -= 1
    story.round("x:3", restart=2)


def job_never_recovers(story):
    story.record("not whole", number=0, limit_s=90.0)


def agent_that_gives_up(story):
    story.agent_ended("a", 4)


def success_for_stopped_workers(story):
    story.agent_ended("a", 0, 143)


def loss_reported_as_a_failure(story):
    story.wave(1, "agent_kill")
    story.record("logged", event="restart decided", cause="failure", reason="rank 1: exit code 1", node="a")
    story.again("x:3", 1)


def leftover_process(story):
    story.record("left", kind="process", name="python worker.py", place=-1)


def leftover_lease(story):
    story.record("left", kind="store", name="lease 7", place=-1)


def leftover_folder(story):
    story.record("left", kind="file", name="disks/0/elastic-x", place=0)


def agent_that_leaks(story):
    for files in (20, 80):
        story.record("holds", node="a", pid=1, files=files, threads=5, memory=2**25)


PLANTED = [
    (two_active_groups, "one group"),
    (checkpoint_by_an_old_round, "one group"),
    (duplicate_rank, "ranks"),
    (rank_beyond_world_size, "ranks"),
    (conflicting_world_sizes, "ranks"),
    (duplicate_node, "ranks"),
    (round_without_a_cause, "cause"),
    (unnoticed_loss, "cause"),
    (harmless_fault_that_costs_a_round, "cause"),
    (newcomer_that_replaces_a_member, "cause"),
    (loss_blamed_much_later, "cause"),
    (many_rounds_before_any_fault, "cause"),
    (failure_counted_twice, "counted once"),
    (failure_not_counted, "counted once"),
    (loss_counted_as_a_failure, "counted once"),
    (worker_ended_without_a_cause, "healthy"),
    (old_worker_next_to_new_ones, "healthy"),
    (lost_checkpoint, "checkpoint"),
    (stops_at_different_steps, "same step"),
    (step_after_the_stop, "same step"),
    (job_never_recovers, "recovery"),
    (agent_that_gives_up, "exit code"),
    (success_for_stopped_workers, "exit code"),
    (loss_reported_as_a_failure, "right cause"),
    (leftover_process, "left over"),
    (leftover_lease, "left over"),
    (leftover_folder, "left over"),
    (agent_that_leaks, "left over"),
]


@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_planted_violation_is_found(story, plant, rule):
    plant(story)
    assert rule in rules(story)


def test_every_rule_has_a_planted_violation():
    assert {rule for _, rule in PLANTED} == set(RULES)


def test_fault_that_missed_is_ignored(story):
    story.wave(1, "agent_kill", missed=True)
    story.whole(1)
    assert story.violations() == []


@pytest.mark.parametrize("hosted", [True, False])
@pytest.mark.parametrize("survivor", ["a", ""])
def test_count_starts_again_only_if_no_node_remembers_it(story, hosted, survivor):
    story.record("job", hosted=hosted)
    story.wave(1, "agent_kill")
    for node in {"a", "b"} - {survivor}:
        story.agent_ended(node, -9, -9)
    story.again("x:3", restart=0, nodes="cd", world=2)
    story.whole(1)
    assert rules(story) == (set() if hosted and not survivor else {"counted once"})


def test_new_count_includes_no_failure_of_its_own(story):
    """A count that starts again is 0, not 1: the loss of a node is no failure."""
    story.record("job", hosted=True)
    story.wave(1, "worker_kill")
    story.again("x:3", restart=2)
    story.whole(1)
    story.wave(2, "agent_kill")
    for node in "ab":
        story.agent_ended(node, -9, -9)
    story.again("x:4", restart=1, nodes="cd", world=2)
    story.whole(2)
    assert rules(story) == {"counted once"}


@pytest.mark.parametrize(("rounds", "found"), [(0, {"cause"}), (1, set()), (2, {"cause"})])
def test_node_that_joins_leads_to_one_round(story, rounds, found):
    story.wave(1, "join")
    for number in range(rounds):
        story.again(f"x:{3 + number}", restart=1, nodes="abc", world=3)
    story.whole(1)
    assert rules(story) == found


def test_files_left_on_a_powered_off_machine_are_allowed(story):
    story.wave(1, "machine_off")
    story.again("x:3", 1)
    story.record("left", kind="file", name="disks/1/elastic-x", place=1)
    assert story.violations() == []


def test_partial_round_before_the_first_fault_is_not_judged(story):
    begin = Story()
    begin.round("y:1", world=1, nodes="a")
    begin.record("start", pid=90, node="b", rank=1, local=0, world=2, restart=0, at_port="y:2")
    begin.stopped(90)
    story.events[:0] = [{**event, "at": event["at"] - 100, "pid": event["pid"] + 5000} for event in begin.events]
    assert "cause" not in rules(story)


def test_simultaneous_faults_may_cost_up_to_their_sum(story):
    faults = [Fault("worker_kill", 0), Fault("worker_kill", 1, 0.5)]
    for count in (1, 2):
        assert FaultWave(tuple(faults[:count])).restarts() == ((1, 1) if count == 1 else (0, 2))
        assert FaultWave(tuple(faults[:count])).rounds == ((1, 1) if count == 1 else (0, 2))


@pytest.mark.parametrize("says", [True, False])
def test_real_workers_may_fail_when_a_peer_is_unreachable(story, says):
    """Workers that do not record SIGTERM are real programs; the cheap ones keep trying for a while."""
    for event in story.events:
        if event["what"] == "start":
            event["says"] = says
    faults = [asdict(Fault("worker_kill", 1)), asdict(Fault("one_way", 0, lasts_s=2.5))]
    story.record("wave", number=1, faults=faults, quiet_s=0.1)
    for number, fault in enumerate(faults):
        story.record("fault", number=1, fault=number, kind=fault["kind"], place=1, pid=None, missed=False)
        story.record("fault over", number=1, fault=number)
    for restart in (2, 3):
        story.again(f"x:{restart + 1}", restart)
    story.whole(1)
    assert ("counted once" in rules(story)) == says


@pytest.mark.parametrize(("after", "found"), [(-0.001, set()), (0.1, set()), (1.0, {"one group"})])
def test_step_in_progress_may_end_when_its_agent_wakes(story, after, found):
    story.wave(1, "agent_stop", lasts_s=20.0)
    story.again("x:3", 1)
    story.events += [{**story.events.pop(story.events.index(over)), "at": story.at}
                     for over in [one for one in story.events if one["what"] == "fault over"][-1:]]  # fmt: skip
    story.record("step", after, pid=102, group="x:2", rank=0, step=9, sum=3)
    assert rules(story) == found


@pytest.mark.parametrize(("node", "found"), [("a", set()), ("b", {"healthy"})])
def test_workers_need_no_sigterm_if_the_grace_was_cut_short(story, node, found):
    story.wave(1, "agent_kill")
    story.stopped(story.workers[1])
    story.record("logged", event="grace cut short", node=node)
    story.round("x:3", restart=1)
    story.whole(1)
    assert rules(story) == found


def test_reused_port_belongs_to_a_new_round(story):
    story.wave(1)
    story.again("x:2", 2)
    assert story.violations() == []
    assert len(History(story.events).rounds) == 3


@pytest.mark.parametrize(("stopped", "found"), [(50, set()), (51, {"cause"})])
def test_suspended_agent_may_report_a_loss_late(story, stopped, found):
    story.record("agent", node="b", place=1, pid=50)
    story.agent_ended("c", -9, -9)
    story.wave(1, "agent_stop", pid=stopped)
    reason = "lost c: its agent has ended"
    story.record("logged", after=60.0, event="restart decided", cause="node lost", node="b", reason=reason)
    assert {each.rule for each in check(History(story.events))} & {"cause"} == found


def test_port_of_a_round_without_steps_can_be_reused(story):
    """The first worker that starts at the port again may have a rank that the earlier round did not have."""
    for number, (rank, pid, node) in enumerate([(0, 90, "a"), (1, 91, "b"), (2, 92, "c")], 8):
        story.record("start", pid=pid, node=node, rank=rank, local=0, world=3, restart=number // 10, at_port="y:2")
        story.record("logged", event="workers started", round=8 + number // 10, pids=[pid], node=node)
    assert [len(each.workers) for each in History(story.events).rounds[-2:]] == [2, 1]


def test_reused_process_id_belongs_to_a_new_worker(story):
    story.wave(1)
    for pid in story.workers:
        story.stopped(pid)
    story.pids = iter([100, 101])  # as in the first round
    story.round("x:3", restart=2)
    assert story.violations() == []
    assert [worker.restart for worker in History(story.events).workers] == [0, 0, 1, 1, 2, 2]


def test_history_survives_writing_and_reading(story, tmp_path):
    path = tmp_path / "history"
    History(story.events).write(path)
    with path.open("a") as file:
        file.write('{"at": 1')  # its writer was killed
    assert History.read(path).events == story.events


# -- storms


def test_seed_determines_the_storm():
    kinds = list(KINDS)
    storm = draw("7", 1500, kinds, 3, 3)
    assert storm == draw("7", 1500, kinds, 3, 3)
    assert storm != draw("8", 1500, kinds, 3, 3)
    faults = [fault for wave in storm for fault in wave.faults]
    assert len(faults) == 1500 + 2
    assert storm[-1].faults[0].kind == "done"
    assert storm[-1].faults[0].place == storm[-1].faults[1].place
    assert storm[-1].rounds == (0, 0)
    assert {fault.kind for fault in faults} == set(kinds)
    assert {fault.place for fault in faults} == {0, 1, 2}
    assert not any(fault.place == fault.other for fault in faults if fault.kind not in ("join", "done"))
    assert any(len(wave.faults) == 3 for wave in storm)


@pytest.mark.parametrize("seed", ["1", "2", "3", "4", "5", "6", "7", "8"])
def test_faults_before_a_node_joins_affect_the_first_node_only(seed):
    storm = draw(seed, 60, list(KINDS), 2, most_s=5.0, losses=1)
    [number] = [number for number, wave in enumerate(storm) if wave.faults[0].kind == "join"]
    early = [fault for wave in storm[:number] for fault in wave.faults]
    assert 1 <= len(early) <= 20
    assert {fault.place for fault in early} == {0}
    assert not {fault.kind for fault in early} & {"drain", "newcomer", "spare_kill", "apart", "one_way"}
    assert storm[number].faults[0].place == 1
    assert {fault.place for wave in storm[number + 1 :] for fault in wave.faults} == {0, 1}
    assert [fault.kind for wave in storm for fault in wave.faults].count("join") == 1


def test_hosts_are_lost_before_and_while_and_after_a_node_joins():
    before, during, after = set(), set(), set()
    for seed in range(40):
        storm = draw(str(seed), 20, ["worker_kill", "agent_kill", "agent_term", "machine_off", "join"], 2, losses=1)
        [number] = [number for number, wave in enumerate(storm) if wave.faults[0].kind == "join"]
        for found, waves in ((before, storm[:number]), (during, [storm[number]]), (after, storm[number + 1 :])):
            found |= {fault.kind for wave in waves for fault in wave.faults if fault.place == 0}
    for found in (before, during, after):
        assert {"agent_kill", "agent_term", "machine_off"} <= found


def test_wave_has_no_duplicate_faults():
    """Two equal faults that lose a node were both dropped, which left the wave empty."""
    for wave in draw("1", 300, ["agent_kill"], 2, losses=1):
        assert len(set(wave.faults)) == len(wave.faults) == 1


def test_fault_durations_are_bounded_and_varied():
    drawn = [fault for wave in draw("1", 500, ["agent_stop"], 3, most_s=10.0) for fault in wave.faults]
    assert all(0.05 <= fault.lasts_s <= 10.0 for fault in drawn)
    assert any(fault.harmless for fault in drawn)
    assert any(not fault.harmless for fault in drawn)


def test_failing_storm_is_minimized():
    """The storm fails if an agent is stopped after a worker was killed."""
    storm = (
        FaultWave((Fault("worker_kill", 0),)),
        *draw("3", 60, list(KINDS), 3, 3),
        FaultWave((Fault("agent_stop", 1),)),
    )
    tried = []

    def fails(some):
        tried.append(some)
        kinds = [fault.kind for wave in some for fault in wave.faults]
        return "worker_kill" in kinds and "agent_stop" in kinds[kinds.index("worker_kill") :]

    assert fails(storm)
    small = smaller(storm, fails)
    assert [fault.kind for wave in small for fault in wave.faults] == ["worker_kill", "agent_stop"]
    assert len(tried) < 100


def test_storm_survives_writing_and_reading(tmp_path):
    storm = draw("3", 20, list(KINDS), 3, 3)
    campaign.write(storm, tmp_path / "storm.json")
    assert campaign.read(tmp_path / "storm.json") == storm
    assert len(json.loads((tmp_path / "storm.json").read_text())) == len(storm)


def test_every_fault_kind_is_implemented():
    everything = Setting("c10d", "", have=frozenset({*(need for kind in KINDS.values() for need in kind.needs)}))
    assert set(campaign.kinds_of(everything)) == set(KINDS)
    assert all(hasattr(Faults, f"_{name}") for name in KINDS)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (50.0, 50.0),  # not shifted at 50
        (1005.0, 5.0),  # shifted by 1000 s: the history ended before 1005
        (102.0, 112.0),  # shifted back by 10 s: at the true time 102, the clock showed 92
        (93.0, None),  # ambiguous: the clock showed 93 at the true times 93 and 103
    ],
)
def test_true_time_is_recovered_from_a_shifted_clock(read, expected):
    assert meant(read, [(2.0, 8.0, 1000), (101.0, 115.0, -10)], 0.0, 900.0) == expected
