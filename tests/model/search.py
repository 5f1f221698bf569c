"""An exhaustive search through all worlds, and the story of how a world came about."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from must_hold import Violation, check_settled
from sameness import Sameness
from small_world import PHASES

if TYPE_CHECKING:
    from small_world import Rules, Steps, World

    from elastic_core.rendezvous.model import State

MOST_TURNS = 60
MOST_LINES = 60


class Found(Exception):
    """A violation, with a short story that leads to it, among those with the fewest events."""

    def __init__(self, what: str, story: tuple[str, ...]) -> None:
        super().__init__(f"{what}\n" + "\n".join(f"  {number}. {line}" for number, line in enumerate(story, 1)))
        self.what = what
        self.story = story


@dataclass
class Search:
    """Statistics of a search.

    Attributes:
        worlds: distinct worlds, by the number of events that led to them.
        steps: transitions between worlds.
        rounds: the highest round that formed.
        turns: ticks that the slowest world needed to settle without further faults.
        left_alone: worlds for which that was tried.
    """

    worlds: list[int] = field(default_factory=list)
    steps: int = 0
    rounds: int = 0
    turns: int = 0
    left_alone: int = 0

    @property
    def total(self) -> int:
        return sum(self.worlds)

    def __str__(self) -> str:
        shown = " + ".join(map(str, self.worlds))
        return (
            f"{self.total} worlds ({shown}), {self.steps} steps, rounds up to {self.rounds}, "
            f"{self.left_alone} left alone, settled within {self.turns} ticks"
        )


class Explorer:
    """Explores all worlds that at most `events` events lead to, and everything that follows from them."""

    def __init__(self, rules: Rules, settle: bool = True) -> None:
        self._rules = rules
        self._same = Sameness(rules)
        self._parents: dict[int, tuple[int, str] | None] = {}
        self._turns: dict[int, int] = {}
        self._settle = settle
        self.search = Search()

    def explore(self, start: World, events: int) -> Search:
        """Raises Found if a world violates an invariant."""
        number = self._same(start)
        self._parents[number] = None
        level = [(number, start)]
        for used in range(events + 1):
            before = len(self._parents) - len(level)
            following = self._close(level, last=used == events)
            self.search.worlds.append(len(self._parents) - before - len(following))
            level = following
        return self.search

    def _close(self, level: list[tuple[int, World]], last: bool) -> list[tuple[int, World]]:
        """Explore everything that follows from these worlds without events. Returns the worlds after one more event."""
        queue, reached = level, []
        while queue:
            fresh: list[tuple[int, World]] = []
            reached += queue
            for number, world in queue:
                self._look_at(number, world)
                self._take(number, world, self._rules.steps(world), "", fresh)
            queue = fresh
        following: list[tuple[int, World]] = []
        for number, world in () if last else reached:
            self._take(number, world, self._rules.happenings(world), "* ", following)
        return following

    def _take(self, number: int, world: World, steps: Steps, mark: str, fresh: list[tuple[int, World]]) -> None:
        for what, make in steps:
            self.search.steps += 1
            try:
                after = make()
            except Violation as violation:
                raise self._found(violation, number, mark + what, *_scene(world)) from None
            key = self._same(after)
            if key not in self._parents:
                self._parents[key] = (number, sys.intern(mark + what))
                fresh.append((key, after))

    def _look_at(self, number: int, world: World) -> None:
        self.search.rounds = max(self.search.rounds, world.state.round.number)
        if self._settle and not self._rules.busy(world):
            self.search.left_alone += 1
            try:
                self.search.turns = max(self.search.turns, self._left_alone(world))
            except Violation as violation:
                raise self._found(violation, number, *_scene(world), *self._trail(world)) from None

    def _left_alone(self, world: World) -> int:
        """Returns the number of ticks until nothing changes any more."""
        world = self._rules.healed(world)
        path: dict[int, int] = {}
        while (number := self._same(world)) not in self._turns and number not in path:
            path[number] = len(path)
            if len(path) > MOST_TURNS:
                raise Violation("nothing bad happens any more, and yet there is no end of changes")
            before, world = world, self._rules.quiet(world)
        turns = self._turns.get(number, 0)
        if number in path:  # the worlds repeat from here on
            check_settled(self._rules, before)
            check_settled(self._rules, world)
        for passed in reversed(path):
            turns += 1 if path[passed] < path.get(number, _FAR) else 0
            self._turns[passed] = turns
        return turns

    def _trail(self, world: World) -> list[str]:
        """The steps of a world that is left alone."""
        trail, world = ["left alone:"], self._rules.healed(world)
        with contextlib.suppress(Violation):
            for _ in range(MOST_TURNS if len(trail) < MOST_LINES else 0):
                world = self._rules.quiet(world, trail.append)
        return trail[:MOST_LINES]

    def _found(self, violation: Violation, number: int, *last: str) -> Found:
        lines = []
        step = self._parents[number]
        while step:
            lines.append(step[1])
            step = self._parents[step[0]]
        return Found(str(violation), (*reversed(lines), *last))


_FAR = 10**9


def explore(rules: Rules, start: World, events: int, settle: bool = True) -> Search:
    """See `Explorer`."""
    return Explorer(rules, settle).explore(start, events)


def _scene(world: World) -> tuple[str, ...]:
    nodes = (f"{actor.key} {PHASES[actor.phase]}" for actor in world.actors)
    return ("(here) " + ", ".join(nodes), _brief(world.state))


def _brief(state: State) -> str:
    shown = [f"round {state.round} {'runs' if state.open else 'does not run'}"]
    shown += [f"members {' '.join(state.seats.keys)}"] if state.seats else []
    shown += [f"gone {' '.join(state.gone)}"] if state.gone else []
    shown += [f"done {' '.join(state.done)}"] if state.done else []
    shown += [f"ended by: {state.end.cause.value}"] if state.end else []
    return "state: " + ", ".join(shown) + (", closed" if state.closed else "")
