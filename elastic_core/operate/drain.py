"""`elastic drain NODE` and `elastic stop`: ask one node or all nodes to leave, and wait until they have left."""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later, swapped
from elastic_core.errors import NotFoundError, RendezvousConnectionError, RendezvousTimeoutError
from elastic_core.operate.commands import ANSWER
from elastic_core.operate.observation import observed
from elastic_core.operate.status import snapshot_of
from elastic_core.rendezvous.codec import decoded_state, encoded_state
from elastic_core.rendezvous.lifeline import Lifeline
from elastic_core.rendezvous.model import State, drained
from elastic_core.rendezvous.roster import alive
from elastic_core.support.bounded import within
from elastic_core.text import counted, in_one_line
from elastic_core.workers.process import more_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.compose.plan import Plan
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.operate.observation import JobObservation, Watcher
    from elastic_core.rendezvous.model import Closed, Entry

_MOST_REFUSALS = 64


def drain(
    plan: Plan,
    word: str,
    timeout: Duration,
    show: Callable[[str], object],
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
    deadline: Duration | None = None,
) -> None:
    """Ask the node that matches `word` to leave the job, and wait until it has left.

    Args:
        timeout: how many seconds to wait for the node to leave; 0 disables the wait.
        deadline: seconds that the node's workers get before SIGKILL; at most, and by default, the shutdown timeout.
        show: receives lines to print.

    Raises:
        NotFoundError: there is no such node or no such job.
        RendezvousTimeoutError: the node was asked to leave, but did not leave in time.
        RendezvousConnectionError, RendezvousStateError, ConfigurationError: see `observed`.
    """
    settings = plan.settings
    with observed(plan, ANSWER, clock, pause) as (watcher, job):
        node = node_called(word, job, snapshot_of(job, settings).missing)
        with _lifelines([node]) as ended:
            again = node.key in (job.state or State()).draining
            state = within(ANSWER, lambda: ask(watcher.backend, [node], deadline), settings.rdzv_endpoint)
            show(in_one_line(_asked(node, state, timeout, again)))
            if timeout:
                wait = functools.partial(_await_all, watcher, job, [node], ended, timeout)
                last = within(timeout + 3 * ANSWER, wait, settings.rdzv_endpoint)
                show(in_one_line(departure(node, last) or f"{node.node} has left"))


def stop(
    plan: Plan,
    timeout: Duration,
    show: Callable[[str], object],
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
    deadline: Duration | None = None,
) -> None:
    """Ask all nodes to leave the job, and wait until they have left. For the arguments and errors, see `drain`. Also
    raises RendezvousConnectionError if the store stops while it is not known that all nodes have left."""
    settings = plan.settings
    with observed(plan, ANSWER, clock, pause) as (watcher, job):
        before = job.state or State()
        nodes, missing = alive(job.roster, before), snapshot_of(job, settings).missing
        if before.closed and not nodes:
            raise NotFoundError(_over(before.closed))
        late = [entry for entry in job.entries if entry.node in missing]  # they obey if they come back soon
        with _lifelines(nodes) as ended:
            request = functools.partial(ask, watcher.backend, [*nodes, *late], deadline, stops=True)
            state = within(ANSWER, request, settings.rdzv_endpoint)
            if not nodes:
                raise NotFoundError(f"the job has no nodes (missing: {', '.join(missing) or 'none'})")
            if state.closed:
                show(in_one_line(_over(state.closed)))
                return
            patience = f"; waiting up to {timeout:g} s until they have left" if timeout else ""
            asked = f"asked {counted(len(nodes), 'node')} to leave"
            if all(node.key in before.draining for node in nodes):
                asked = "all nodes had already been asked to leave, and their deadlines stay the same"
            show(f"{asked}{patience}")
            if missing:
                names = in_one_line(", ".join(missing))
                show(f"missing: {names}; a node that comes back leaves when it reaches the store")
            if timeout:
                wait = functools.partial(_await_all, watcher, job, nodes, ended, timeout)
                within(timeout + 3 * ANSWER, wait, settings.rdzv_endpoint)
                show("all nodes have left")


@contextlib.contextmanager
def _lifelines(nodes: Sequence[Entry]) -> Iterator[Mapping[str, threading.Event]]:
    """Connect to the nodes' agents, before the nodes can leave. Yields an event for each node, by key, that is set when
    its agent has ended. The events do not depend on the store, which may stop with its host."""
    ended = {node.key: threading.Event() for node in nodes}
    with more_files(), contextlib.ExitStack() as held:
        for node in nodes:
            watched = functools.partial(lambda it: (it.seat, it.after) if it.lifeline else None, node)
            lifeline = held.enter_context(contextlib.closing(Lifeline(watched, lambda key: ended[key].set())))
            lifeline.look()
        yield ended


def _await_all(
    watcher: Watcher,
    job: JobObservation,
    nodes: Sequence[Entry],
    ended: Mapping[str, threading.Event],
    timeout: Duration,
) -> JobObservation:
    """Wait until the nodes have left, and return the last observation. If the store's host is among them, the store may
    stop first. In that case, `ended` shows which agents have ended.

    Raises:
        RendezvousTimeoutError: they did not leave in time.
        RendezvousConnectionError: the store has stopped, and some nodes' agents do not end soon afterwards.
    """
    until = later(watcher.clock.now(), timeout)
    while left := [node for node in nodes if departure(node, job) is None and not ended[node.key].is_set()]:
        if watcher.clock.now() >= until:
            raise RendezvousTimeoutError(
                f"within {timeout:g} s, {counted(len(left), 'node')} did not leave: {_names(left)}; workers may "
                "still be stopping (--shutdown-timeout)"
            )
        watcher.pause(job.pause)
        try:
            job = watcher.look(job)
        except RendezvousConnectionError:
            clock = SystemClock()
            last = later(clock.now(), ANSWER)
            left = [node for node in left if not ended[node.key].wait(max(last - clock.now(), 0.0))]
            try:
                job = watcher.look(job) if left else job  # reconnects, in case the store has moved to another node
            except RendezvousConnectionError as error:
                message = f"the store has stopped, and {counted(len(left), 'node')} may not have left: {_names(left)}"
                raise RendezvousConnectionError(f"{message}; {error}") from error
    return job


def node_called(word: str, job: JobObservation, missing: Sequence[str] = ()) -> Entry:
    """Return the live node whose id is `word`. If there is none, return the only live node whose host name is `word` or
    whose rank in the running round is `word`. `missing` contains the names of lost nodes, for the message.

    Raises:
        NotFoundError: no node matches, or several do; the message lists the nodes.
    """
    state = job.state or State()
    live = alive(job.roster, state)
    found = [entry for entry in live if entry.node == word]
    if not found:
        found = [e for e in live if e.host == word or (state.open and str(state.rank(e.key)) == word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFoundError(f"{word!r} matches {len(found)} nodes: {_names(found)}; give a node's id")
    if state.closed:
        raise NotFoundError(_over(state.closed))
    lost = f"; missing: {', '.join(missing)}" if missing else ""
    raise NotFoundError(f"no node matches {word!r} (nodes: {_names(live)}{lost})")


def _names(entries: Sequence[Entry]) -> str:
    return ", ".join(entry.node for entry in entries) or "none"


def ask(backend: RosterBackend, nodes: Sequence[Entry], deadline: Duration | None = None, stops: bool = False) -> State:
    """Mark the nodes as draining and return the new state. For `deadline`, see `drain`. If the job `stops`, lost nodes
    that come back must leave, too.

    Raises:
        RendezvousConnectionError: the store does not answer, or refuses every write.
        RendezvousStateError: the state cannot be read.
    """

    def change() -> State | None:
        found = backend.get_state()
        state = State() if found is None else decoded_state(found[0])
        changed = functools.reduce(lambda old, node: drained(old, node.key, deadline), nodes, state)
        if stops and not changed.closed and changed.stopped != changed.round:
            changed = replace(changed, stopped=changed.round)
        if changed is state:
            return state
        answer = backend.set_state(encoded_state(changed), None if found is None else found[1])
        return changed if answer is not None and answer[2] else None

    return swapped(change, _MOST_REFUSALS, f"could not ask {_names(nodes)} to leave")


def _asked(node: Entry, state: State, timeout: Duration, again: bool) -> str:
    if state.closed:
        return _over(state.closed)
    patience = f"; waiting up to {timeout:g} s until it has left" if timeout else ""
    asked = "had already been asked to leave, and its deadline stays the same" if again else "was asked to leave"
    return f"{node.node} on {node.host or 'an unknown host'} {asked}{patience}"


def _over(closed: Closed) -> str:
    return f"the job is already over: closed by {closed.by}: {closed.reason}"


def departure(node: Entry, job: JobObservation) -> str | None:
    """Return a description of how the node left, or None if it is still a member."""
    if all(entry.key != node.key for entry in job.entries):
        return f"{node.node} has left"
    beat = job.beat(node.key)
    return f"{node.node} has failed: no heartbeat for {beat.age or 0.0:.1f} s" if beat.late else None
