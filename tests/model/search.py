"""Breadth-first search through all worlds, and the story of how one came about."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from must_hold import Violation
from small_world import PHASES, TIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from small_world import Node, Rules, World

    from elastic_core.rendezvous.state import State

SWEEPS = 40


class Found(Exception):
    """A violation, and the shortest story that leads to it."""

    def __init__(self, what: str, story: tuple[str, ...]) -> None:
        super().__init__(f"{what}\n" + "\n".join(f"  {number}. {line}" for number, line in enumerate(story, 1)))
        self.what = what
        self.story = story


@dataclass
class Search:
    """What a search went through.

    Attributes:
        worlds: distinct ones.
        steps: ways from one to another.
        rounds: the highest round that formed.
        sweeps: turns of all nodes that the slowest world needed to settle once nothing bad happened any more.
        exhausted: whether nothing new came up in the last step: then no longer runs exist either.
    """

    worlds: int = 0
    steps: int = 0
    rounds: int = 0
    sweeps: int = 0
    exhausted: bool = False

    def __str__(self) -> str:
        bound = "all there are" if self.exhausted else "within the bound"
        return (
            f"{self.worlds} worlds ({bound}), {self.steps} steps, rounds up to {self.rounds}, "
            f"settled within {self.sweeps} turns"
        )


def explore(rules: Rules, starts: Iterable[World], actions: int, settle: bool = True) -> Search:
    """Go through all worlds that `actions` steps, of whomever and in any order, lead to.

    Raises:
        Found: one of them must not be.
    """
    parents: dict[World, tuple[World, str] | None] = dict.fromkeys(starts)
    frontier = list(parents)
    search = Search()
    nodes: dict[Node, Node] = {}  # equal ones are kept once
    times: dict[World, int] = {}
    for _ in range(actions):
        fresh = []
        for world in frontier:
            try:
                for what, after in rules.steps(world):
                    search.steps += 1
                    if after not in parents:
                        kept = after._replace(nodes=tuple(nodes.setdefault(node, node) for node in after.nodes))
                        parents[kept] = (world, sys.intern(what))
                        fresh.append(kept)
            except Violation as violation:
                story = (*_story(parents, world), f"(one step after this) {violation}")
                raise Found(str(violation), story) from None
        if settle:
            for world in fresh:
                try:
                    search.sweeps = max(search.sweeps, _sweeps(rules, world, times))
                except Violation as violation:
                    raise Found(str(violation), (*_story(parents, world), *_scene(rules, world))) from None
        frontier = fresh
        if not frontier:
            search.exhausted = True
            break
    search.worlds = len(parents)
    search.rounds = max(rules.state(world.state).round for world in parents)
    return search


def _story(parents: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    lines = []
    step = parents[world]
    while step:
        lines.append(step[1])
        step = parents[step[0]]
    return tuple(reversed(lines))


def _scene(rules: Rules, world: World) -> tuple[str, ...]:
    nodes = (f"{key} {PHASES[node.phase]}" for key, node in zip("abcdef", world.nodes, strict=False))
    return ("(left alone from here) " + ", ".join(nodes), _brief(rules.state(world.state)))


def _brief(state: State) -> str:
    shown = [f"round {state.round} {'runs' if state.open else 'does not run'}"]
    shown += [f"members {' '.join(seat.key for seat in state.seats)}"] if state.seats else []
    shown += [f"gone {' '.join(state.gone)}"] if state.gone else []
    shown += [f"done {' '.join(state.done)}"] if state.done else []
    shown += [f"ended by: {state.end.cause.value}"] if state.end else []
    return "state: " + ", ".join(shown) + (", closed" if state.closed else "")


def _sweeps(rules: Rules, world: World, times: dict[World, int]) -> int:
    """How many turns of all nodes it takes until nothing changes any more, which must be a world that is settled. Nodes
    are quick: time passes only when nobody has anything to do."""
    path = []
    while world not in times:
        path.append(world)
        if len(path) > SWEEPS:
            raise Violation(f"nothing bad happens any more, and yet there is no end after {SWEEPS} turns of all nodes")
        after = next((w for now in TIMES if (w := rules.sweep(world, now)) != world), None)
        if after is None:
            if not rules.settled(world):
                raise Violation("nothing bad happens any more, and yet no round forms")
            times[world] = 0
            path.pop()
        else:
            world = after
    count = times[world]
    for passed in reversed(path):
        count += 1
        times[passed] = count
    return count
