"""Shared by tests of an agent in a round of two: verdicts, worker scripts, and fakes that record the order of calls."""

from __future__ import annotations

import signal
import threading

from agent_fakes import FakeRounds, FakeWorkers, round_info

from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.observer import RestartDecided

TERM, CONT = signal.SIGTERM, signal.SIGCONT
FOREVER = 3600.0
ELSEWHERE = ProcessFailure(0, 77, -9, global_rank=9, node="node2", round=1, reason="killed by SIGKILL", message="boom")
THEIRS = {9: ELSEWHERE}
PEER_FAILED = Verdict(Outcome.RESTART, "rank 9 on node2: killed by SIGKILL", failed=True, failures=THEIRS)
NODE_JOINED = Verdict(Outcome.RESTART, "node5 joined")
FAILED_ELSEWHERE = Verdict(Outcome.CLOSED, "rank 9 on node2; no restart left", by="node2", failures=THEIRS)
JOB_DONE = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node2")
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")
DRAINED = Verdict(Outcome.DRAINED, "requested by the operator")
PAIR = (("trainer", 2), ("trainer", 2))


def two_nodes(number=1, **fields):
    return round_info(number, PAIR, **fields)


def pair_then(*steps):
    return [two_nodes(), *steps]


def succeed(plan, workers):
    for rank in workers.running():
        workers.end(rank, 0)


def fail(plan, workers):
    workers.end(0, 3)


def close_job(rounds):
    """The other node has succeeded, too."""
    rounds.give(JOB_DONE)


def in_turn(*scripts):
    """A worker script that uses these functions in the first, second, ... round; the last one is repeated."""
    left = list(scripts)
    return lambda plan, workers: (left.pop(0) if len(left) > 1 else left[0])(plan, workers)


def decided(node):
    return [fact for fact in node.observer.facts if isinstance(fact, RestartDecided)]


def in_order(node, *names):
    """The given calls and signals in the order in which they happened."""
    return [name for name in node.order if name in names]


def let_time_pass(node, clock):
    """Advance the clock until the agent asks for the missing nodes."""
    for _ in range(600):
        clock.advance(4.0)
        node.handler.give(None)  # any event makes the agent check the clock
        if node.handler.asked.wait(0.05):
            return


class Ordered(FakeWorkers):
    """Workers that record signals in the same list as the handler's calls."""

    def __init__(self, on_start, order, **kwargs):
        super().__init__(on_start, **kwargs)
        self.order = order

    def send_signal(self, signum):
        self.order.append(signal.Signals(signum).name)
        super().send_signal(signum)


class OrderedRounds(FakeRounds):
    def __init__(self, order, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.order = order
        self.asked = threading.Event()

    def progress(self):
        self.asked.set()
        return super().progress()

    def report_failure(self, failures):
        self.order.append("report_failure")
        super().report_failure(failures)

    def leave(self, reason, timeout):
        self.order.append("leave")
        return super().leave(reason, timeout)
