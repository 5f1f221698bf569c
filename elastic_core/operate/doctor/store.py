"""The store: how long it takes to answer, and whether a job of this id has met there. Measured, then judged."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousError
from elastic_core.operate.doctor.finding import Check, fault, note, ok, warning
from elastic_core.rendezvous.codec import decoded_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import RendezvousBackend
    from elastic_core.operate.doctor.finding import Finding
    from elastic_core.rendezvous.model import State

_TIMES = 10
_SLOW: Duration = 0.1


@dataclass(frozen=True)
class Answered:
    """Seconds of each round trip, after a first one that makes the connection; and the job's state."""

    seconds: tuple[Duration, ...] = ()
    state: State | None = None
    unreadable: str = ""


def asked(backend: RendezvousBackend, clock: Clock) -> Answered:
    """Read the state again and again. Raises RendezvousConnectionError."""
    found = backend.get_state()
    seconds = []
    for _ in range(_TIMES):
        begun = clock.now()
        found = backend.get_state()
        seconds.append(clock.now() - begun)
    try:
        return Answered(tuple(seconds), None if found is None else decoded_state(found[0]))
    except RendezvousError as error:
        return Answered(tuple(seconds), unreadable=str(error))


def judged_store(answered: Answered, run_id: str) -> Iterator[Finding]:
    """`run_id`: the job."""
    median, worst = statistics.median(answered.seconds), max(answered.seconds)
    told = f"answers after {median * 1000:.2f} ms, at worst {worst * 1000:.2f} ms ({len(answered.seconds)} reads)"
    if worst < _SLOW:
        yield ok(Check.STORE, told)
    else:
        advice = "nodes hear of each other that late; look at the load of its machine, and the way there"
        yield warning(Check.STORE, told, advice)
    yield _judged_job(answered, run_id)


def _judged_job(answered: Answered, run_id: str) -> Finding:
    another = "choose another --rdzv-id"
    if answered.unreadable:
        return fault(Check.RUN_ID, f"what is stored under {run_id!r} cannot be read: {answered.unreadable}", another)
    state = answered.state
    if state is None:
        return ok(Check.RUN_ID, f"no job {run_id!r} has met there yet")
    if state.closed:
        told = f"the job {run_id!r} is over, closed by {state.closed.by}: {state.closed.reason}"
        return fault(Check.RUN_ID, told, f"{another}: elastic run would leave at once")
    advice = "a node that starts now joins it; elastic status shows it"
    return note(Check.RUN_ID, f"a job {run_id!r} is there already, in round {state.round}", advice)
