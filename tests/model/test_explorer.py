"""Tries everything that can happen to a few nodes.

From a world in which a round runs, or that no node has joined yet, the search explores everything that may follow
without events, in any order, and everything that follows from one or several events (see `EVENTS`) at any moment. It
checks every write, every world that comes to rest, and that each world settles when no more faults happen (see
`must_hold`).

The number of worlds is a lower bound: a change that makes the search see less must adjust it, with a reason.
"""

from __future__ import annotations

import gc
from typing import NamedTuple

import pytest
from search import explore
from small_world import EVENTS, Rules

MOST_TURNS = 36  # ticks in which a world settles; a leader that cannot write pauses for ten failure timeouts


class Case(NamedTuple):
    """One search.

    Args:
        bounds: `min_nodes` and `max_nodes`.
        nodes, happens, more: see `Rules`.
        first: how many nodes run a round at the start.
        floor: the minimum number of worlds.
        events: how many of `happens` there may be.
        before: events that have happened before the search.
    """

    what: str
    bounds: tuple[int, int]
    nodes: str
    first: int
    floor: int
    events: int = 1
    happens: tuple[str, ...] = EVENTS
    more: dict[str, object] = {}
    before: tuple[str, ...] = ()


@pytest.fixture
def searched(capsys):
    """Function that runs a search, always prints its statistics, and checks that it saw enough worlds."""

    def searched(case):
        rules = Rules(*case.bounds, case.nodes, case.happens, **case.more)
        start = rules.running(case.first) if case.first else rules.empty()
        gc.disable()  # the worlds contain no cycles, so collecting would only cost time
        try:
            search = explore(rules, rules.after(start, *case.before), case.events)
        finally:
            gc.enable()
        with capsys.disabled():
            print(f"\n  explorer: {case.what}: {search}")
        assert search.total >= case.floor
        assert search.turns <= MOST_TURNS

    return searched


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.what for case in cases])


LEASES = {"leases": True, "attempts": 4}
SLOW = {"stops": {"a": 3, "b": 3}}
SEEN = {"lifelines": True}
ANSWERS = ("loses an answer", "is late")

LATE = ("is cut off", "is cut off at work", "waits for its answer")
SLOW_ANSWER = ("b/1: looks", "b/1 waits for its answer")
A_LEADS = ("a/1: looks", "a/1: Heartbeat(leading)", "a/1: ReadRoster")
AT_LAST = (*SLOW_ANSWER, *2 * (*A_LEADS, "time passes"), *A_LEADS, "b/1 gets its answer")
FROZEN = ("b/1 freezes",)
FAILED = ("b/1 fails, uncertain",)
SLOW_NODE = ("is interrupted", "fails")
CUT_OFF = ("is cut off", "is late")
HOST_RESTARTED = ("b/1 crashes", "the store forgets")
FAILED_BEFORE = ("a/1 fails", *HOST_RESTARTED)

ALWAYS = [
    Case("1:2, no node there yet, no faults", (1, 2), "ab", 0, 3_590, events=0),
    Case("2:2, no node there yet, no faults", (2, 2), "ab", 0, 3_230, events=0),
    Case("1:2, both run", (1, 2), "ab", 2, 35_000),
    Case("2:2, both run", (2, 2), "ab", 2, 34_000),
    Case("1:2, both run, leases and a grace", (1, 2), "ab", 2, 25_800, more={**LEASES, "grace": 6.0}),
    Case("1:2, the first is done", (1, 2), "ab", 2, 20_000, 1, ("crashes", *ANSWERS), LEASES, ("a/1 succeeds",)),
    Case("1:2, one has failed", (1, 2), "ab", 2, 26_000, 1, ("crashes", *ANSWERS), {}, ("a/1 fails",)),
    Case("1:2, ends are seen", (1, 2), "ab", 2, 20_900, 1, ("crashes",), SEEN),
    Case("2:2, the host was restarted", (2, 2), "ab", 2, 12_000, 1, SLOW_NODE, {}, HOST_RESTARTED),
    Case("1:2, the host was restarted", (1, 2), "ab", 2, 13_000, 1, SLOW_NODE, {}, HOST_RESTARTED),
    Case("1:2, the host was restarted, cut off", (1, 2), "ab", 2, 56_000, 1, ("is cut off",), {}, HOST_RESTARTED),
    Case("2:2, the host was restarted, leases", (2, 2), "ab", 2, 5_200, 1, SLOW_NODE, LEASES, HOST_RESTARTED),
    Case("2:2, one failed, the host was restarted", (2, 2), "ab", 2, 7_700, 1, SLOW_NODE, {}, FAILED_BEFORE),
    Case("1:2, a late answer, cut off", (1, 2), "ab", 2, 38_000, 1, ("is cut off at work",), {}, AT_LAST),
    Case("1:2, frozen, a slow answer", (1, 2), "ab", 2, 50_000, 1, ("waits for its answer",), {}, FROZEN),
    Case("1:2, the store forgot, one may come", (1, 2), "ab", 1, 10_000, 1, SLOW_NODE, {}, ("the store forgets",)),
]


@named(ALWAYS)
def test_explored_two_node_worlds_keep_all_promises(case, searched):
    searched(case)


NIGHTLY = [
    Case("1:2, the host was restarted, cut off or late", (1, 2), "ab", 2, 74_000, 1, CUT_OFF, {}, HOST_RESTARTED),
    Case("2:2, the host was restarted, cut off or late", (2, 2), "ab", 2, 66_000, 1, CUT_OFF, {}, HOST_RESTARTED),
    Case("1:2, two slow answers or cut off", (1, 2), "ab", 2, 200_000, 1, LATE, {}, SLOW_ANSWER),
    Case("2:2, two slow answers or cut off", (2, 2), "ab", 2, 145_000, 1, LATE, {}, SLOW_ANSWER),
    Case("1:2, frozen, a slow answer or cut off", (1, 2), "ab", 2, 120_000, 1, LATE, {}, FROZEN),
    Case("1:2, the first is done, ends are seen", (1, 2), "ab", 2, 49_000, 1, ("crashes",), SEEN, ("a/1 succeeds",)),
    Case("1:2, the second is drained", (1, 2), "ab", 2, 85_000, 1, ("crashes", *ANSWERS), SLOW, ("b/1 is drained",)),
    Case("2:2, both run, leases", (2, 2), "ab", 2, 29_000, more=LEASES),
    Case("1:2, one failed, ends are seen", (1, 2), "ab", 2, 56_000, 1, ("crashes",), SEEN, FAILED),
    Case("1:1, two agents of one name", (1, 1), "aa", 1, 130_000),
    Case("1:2, both run, workers take long to stop", (1, 2), "ab", 2, 180_000, more=SLOW),
    Case("1:2, one runs, one may come", (1, 2), "ab", 1, 155_000),
    Case("2:2, one is drained, one may come", (2, 2), "aba", 2, 1_100_000, 1, ("crashes",), SLOW, ("b/1 is drained",)),
    Case("1:3, three run, ends are seen", (1, 3), "abc", 3, 700_000, 1, ("crashes",), SEEN),
    Case("2:3, the host was restarted", (2, 3), "abc", 3, 200_000, 1, ("is interrupted",), {}, HOST_RESTARTED),
    Case("1:3, the store forgot", (1, 3), "abc", 2, 180_000, 1, ("is interrupted",), {}, ("the store forgets",)),
    Case("2:2, crashes and a store that forgets", (2, 2), "ab", 2, 100_000, 2, ("crashes", "the store forgets")),
    Case("2:3, three run", (2, 3), "abc", 3, 170_000, 1, ("crashes", "fails", "succeeds")),
]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@named(NIGHTLY)
def test_explored_larger_worlds_keep_all_promises(case, searched):
    searched(case)
