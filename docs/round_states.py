"""Draws the transitions of a job's state. To find them, the script tries all changes of `elastic_core.rendezvous.model`
in every state, starting with the empty state, until no change leads to a new state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.node import Member
from elastic_core.rendezvous import model as changes
from elastic_core.rendezvous.model import Cause, Report, RoundId, Seat, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[State], State]

_SEATS = tuple(Seat(key, Member(key, key, "", "default", 1), 1) for key in "ab")
_ROUNDS, _RESTARTS = 2, 1

_MEANING = {
    "none yet": "no round has formed; nodes are joining",
    "running": "a round is running",
    "over": "the last round has ended; its workers are being stopped, and nodes are joining the next round",
    "succeeded": "closed: all members' workers have succeeded",
    "failed": "closed on request, or after a failure when no restarts were left or a restart would not have helped",
}
_MEMORY = "the store loses its data, and a node restores it"
_KNOWS = "the store has lost its data, and a node knows that the job has closed"
_OF_TABLE = (_MEMORY, _KNOWS)


def page(note: str) -> str:
    """Return the page. `note` is a comment that marks it as generated."""
    arrows = explored()
    head = [
        "# States of a job\n",
        note,
        "The state of a job changes only in the ways shown here. [How it works](../concepts/how-it-works.md) explains",
        "the changes. The picture and the table are generated from the code by trying every change, starting with the",
        "empty state. Only the table shows what happens if the store loses its data.\n",
    ]
    states = [f"| {name} | {meaning} |" for name, meaning in _MEANING.items()]
    rows = [
        f"| {before.replace('_', ' ')} | {label} | {after.replace('_', ' ')} |"
        for (before, after), labels in arrows.items()
        for label in labels
    ]
    return "\n".join(
        [
            *head,
            "![The states of a job, and the changes between them](states.svg)\n",
            *("| state | meaning |", "|---|---|", *states, ""),
            *("| state | what happens | next state |", "|---|---|---|", *rows, ""),
        ]
    )


def explored() -> dict[tuple[str, str], list[str]]:
    """Return the changes that lead from one kind of state to another, by these two kinds, in the order of states."""
    arrows: dict[tuple[str, str], list[str]] = {}
    seen, left = {repr(State())}, [State()]  # a state holds dictionaries, so it cannot be in a set
    while left:
        state = left.pop(0)
        for label, change in _changes(state):
            after = change(state)
            if (after == state and label != _MEMORY) or after.round.number > _ROUNDS:
                continue
            labels = arrows.setdefault((_id(kind(state)), _id(kind(after))), [])
            if label not in labels:
                labels.append(label)
            if repr(after) not in seen:
                seen.add(repr(after))
                left.append(after)
    order = {_id(name): number for number, name in enumerate(_MEANING)}
    return dict(sorted(arrows.items(), key=lambda item: (order[item[0][0]], order[item[0][1]])))


def picture() -> str:
    """Return the states, and the arrows between different states, as SVG. A KeyError means that a new arrow has no
    entry in `_ARROWS` yet."""
    drawn = {pair: [label for label in labels if label not in _OF_TABLE] for pair, labels in explored().items()}
    arrows = {pair: labels for pair, labels in drawn.items() if pair[0] != pair[1] and labels}
    parts = [_box(name, *_PLACES[name]) for name in _MEANING]
    for (before, after), labels in arrows.items():
        parts += _arrow(*_ARROWS[before.replace("_", " "), after.replace("_", " ")], labels)
    return "\n".join([_HEAD, *parts, "</svg>", ""])


_PLACES = {"none yet": (90, 50), "running": (400, 50), "succeeded": (710, 50), "over": (400, 300), "failed": (710, 300)}
_ARROWS = {  # for each arrow: its points, the position of its label's first line, and the text anchor
    ("none yet", "running"): ("M150,50 L334,50", (242, 40), "middle"),
    ("none yet", "failed"): ("M90,74 L90,430 L710,430 L710,330", (250, 420), "middle"),
    ("running", "succeeded"): ("M460,50 L644,50", (552, 40), "middle"),
    ("running", "over"): ("M380,74 L380,270", (370, 120), "end"),
    ("over", "running"): ("M420,276 L420,80", (430, 250), "start"),
    ("running", "failed"): ("M450,74 L680,270", (590, 150), "start"),
    ("over", "failed"): ("M460,300 L644,300", (552, 345), "middle"),
}
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 450" font-family="sans-serif" font-size="13">
<rect width="800" height="450" rx="8" fill="#ffffff"/>
<marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L10,5 L0,10 z" fill="#444444"/></marker>"""


def _box(name: str, x: int, y: int) -> str:
    shape = f'<rect x="{x - 60}" y="{y - 24}" width="120" height="48" rx="10" fill="#eef2f7" stroke="#444444"/>'
    return f'{shape}\n<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" fill="#111111">{name}</text>'


def _arrow(points: str, at: tuple[int, int], anchor: str, labels: list[str]) -> Iterator[str]:
    x, y = at
    yield f'<path d="{points}" stroke="#444444" fill="none" marker-end="url(#tip)"/>'
    for number, label in enumerate(labels):
        yield f'<text x="{x}" y="{y + 18 * number}" text-anchor="{anchor}" fill="#111111">{label}</text>'


def kind(state: State) -> str:
    """Return the kind of a state, which is a key of `_MEANING`."""
    if state.closed:
        return "succeeded" if state.closed.succeeded else "failed"
    if state.open:
        return "running"
    return "over" if state.round else "none yet"


def _id(name: str) -> str:
    return name.replace(" ", "_")


def _changes(state: State) -> Iterator[tuple[str, Change]]:
    """Yield all changes that nodes make to the state, each only in states in which the policy (`decide`) makes it.
    Changes after a loss of the store's data come last."""
    if not state.open:
        yield "a round forms", lambda it: it if it.closed else changes.formed(it, _SEATS, _RESTARTS, "")
    yield Cause.LOST.value, lambda it: changes.ended(it, Cause.LOST, "b", "", ("b",))
    if state.open:
        yield Cause.JOINED.value, lambda it: changes.ended(it, Cause.JOINED, "c", "")
        yield "all members have succeeded", lambda it: changes.closed(it, "a", "", succeeded=True)
    yield Cause.LEFT.value, lambda it: changes.left(it, "b", "")
    yield "a drain is requested", lambda it: changes.drained(it, "b")
    if state.open and "b" in state.draining and "b" not in state.done:
        yield Cause.DRAINED.value, lambda it: changes.ended(it, Cause.DRAINED, "b", "")
    yield "a member has succeeded", lambda it: changes.succeeded(it, ["b"], it.round)
    for words, certain, curable in (
        ("failure", True, True),
        ("failure that a node loss may have caused", False, True),
        ("failure that no restart cures", True, False),
    ):
        report = Report("a", "a", (replace(ProcessFailure(0, 1, 1), curable=curable),), certain)
        spent = " (no restart left)" if certain and curable and state.restarts >= _RESTARTS else ""
        yield words + spent, lambda it, report=report: changes.failed(it, it.round, report)
    if state.end is not None and not state.open and not state.end.counted:
        spent = " (no restart left)" if state.restarts >= _RESTARTS else ""
        yield "the failure is counted" + spent, lambda it: changes.counted_failure(it)
        yield "a node loss caused the failure", lambda it: changes.followed(it, Cause.LOST, "b", "")
    yield "closed on request", lambda it: changes.closed(it, "a", "", succeeded=False)
    yield "a node is refused", lambda it: changes.refused(it, (("c", "why"),))
    yield _MEMORY, lambda it: changes.recovered(it, State())
    for succeeded in (True, False):
        known = changes.closed(State(round=RoundId(1)), "a", "", succeeded=succeeded)
        yield _KNOWS, lambda it, known=known: changes.recovered(known, it)
