"""The health check of the rendezvous endpoint and the store behind it."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import statistics
import threading
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from elastic_core.diagnostics import CORE, GRACE, Plan, decoded_state, own_version, within
from elastic_core.plugin import (
    ConfigurationError,
    ElasticError,
    RendezvousBackendRecord,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    SystemClock,
    counted,
    described_error,
)
from elastic_doctor import machine
from elastic_doctor.checks import python_version
from elastic_doctor.finding import Check, fault, note, ok, warning
from elastic_doctor.network import judged_store_absence, listening, meets_itself, surroundings_of
from elastic_doctor.options import DoctorOptions
from elastic_doctor.peers import Announcement, Doctor, cannot_reach, judged_peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.diagnostics import HmacSeal, State
    from elastic_core.plugin import CheckResult, Clock, Context, Duration, RendezvousBackend, RosterBackend
    from elastic_doctor.network import NetworkFindings

_FAREWELL: Duration = 30.0
_READS = 10
_SLOW: Duration = 0.1


def check_store(context: Context) -> Iterator[CheckResult]:
    """Check the endpoint's names, addresses and ports, and then the store. `elastic doctor` passes the values of its
    flags as options."""
    assert isinstance(context.plan, Plan)
    return StoreCheck(context.plan, DoctorOptions(**context.options), SystemClock()).results()


@dataclass(frozen=True)
class StoreCheck:
    """The check of the store that a run with this plan would use. With `options.peers`, the doctors meet there."""

    plan: Plan
    options: DoctorOptions
    clock: Clock

    @property
    def nodes(self) -> int:
        return max(self.plan.settings.nnodes.max, self.options.peers)

    def results(self) -> Iterator[CheckResult]:
        plan, settings = self.plan, self.plan.settings
        record = plan.manager.backend_named(settings.rdzv_backend)
        around = surroundings_of(settings, record, self.nodes, self.options.timeout, self.clock)
        yield from around.findings
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield machine.judged_files(soft, hard, self.nodes if around.may_host else 0)
        if record is not None and RendezvousBackendRecord in plan.chosen:
            yield from self._store(record, around)

    def _store(self, record: RendezvousBackendRecord, around: NetworkFindings) -> Iterator[CheckResult]:
        settings, options = self.plan.settings, self.options
        expected = options.expect_store or bool(options.peers)
        if meets_itself(settings, record, self.nodes):
            if expected:
                yield fault(
                    Check.STORE, "a single-node job hosts its own store", "set --rdzv-endpoint to the store's address"
                )
            return
        if record.open_backend is None:
            if expected:
                text = f"the backend {record.name!r} has no store that can be reached from outside"
                advice = "remove --peers and --expect-store, or choose a multi-node backend"
                yield fault(Check.STORE, text, advice)
            return
        if around.places and not (around.is_served or options.peers):
            yield self._broken() or judged_store_absence(options.expect_store, settings.rdzv_endpoint, record.hosted)
            return
        try:
            yield from self._answers(record, around)
        except RendezvousConnectionError as error:
            if around.is_served or expected:
                advice = "start elastic serve or the store's service there, or correct the endpoint"
                yield fault(Check.STORE, str(error), advice)
            else:
                advice = "fine if the job itself hosts the store; otherwise, correct the endpoint"
                yield note(Check.STORE, str(error), advice)
        except ConfigurationError as error:
            yield _refused(error)
        except Exception as error:  # noqa: BLE001 - keep the other results if a plugin raises
            text = str(error) if isinstance(error, ElasticError) else described_error(error)
            yield fault(Check.STORE, text, "check the endpoint; report a plugin's traceback to its authors")

    def _answers(self, record: RendezvousBackendRecord, around: NetworkFindings) -> Iterator[CheckResult]:
        settings, options = self.plan.settings, self.options
        with self._served(record, around) as served:
            if served:
                yield note(Check.STORE, "no server was running, so this doctor hosted the store for its checks")
            patience = options.peers_timeout if options.peers else options.timeout
            with self.plan.opened(patience) as (backend, *_):
                found = within(patience + GRACE, lambda: asked(backend, self.clock), settings.rdzv_endpoint)
                yield from judged_store(found, settings.rdzv_id or "")
            if options.peers:
                meeting = replace(settings, rdzv_id=f"{settings.rdzv_id or ''}.doctor")
                plan = replace(self.plan, reading=replace(self.plan.reading, settings=meeting))
                with plan.opened(patience) as (backend, seal, _):
                    try:
                        yield from self._peers(backend, around)
                    except RendezvousConnectionError:
                        if not seal.refused:  # otherwise, a doctor with another secret hosted the store and has left
                            raise
                    yield from judged_secret(seal)

    def _broken(self) -> CheckResult | None:
        """Return a fault of the backend that occurs even without a running store, such as a missing library."""
        try:
            with self.plan.opened(self.options.timeout):
                return None
        except ConfigurationError as error:
            return _refused(error)
        except Exception:  # noqa: BLE001 - the missing store may be the reason
            return None

    @contextlib.contextmanager
    def _served(self, record: RendezvousBackendRecord, around: NetworkFindings) -> Iterator[bool]:
        """Host the store for the peers while the context is open. Yields whether this doctor hosts it, which is not the
        case if a server is already running or if this machine may not host the store."""
        server = None
        if self.options.peers and not around.is_served and around.may_host and record.serve is not None:
            server = self.plan.store_server(self.plan.settings.rdzv_endpoint, self.nodes)
            try:
                server.start()
            except ConfigurationError:  # another doctor on this machine has started the store first
                server = None
        try:
            yield server is not None
        finally:
            if server is not None:
                server.stop()

    def _peers(self, backend: RosterBackend, around: NetworkFindings) -> Iterator[CheckResult]:
        host = socket.gethostname()
        name, patience, peers = f"{host}:{os.getpid()}", self.options.peers_timeout, self.options.peers
        versions = {CORE: own_version(), "Python": python_version(), "torch": _version_of("torch")}
        with listening(2 * peers) as port:
            card = Announcement(name, around.advertised or host, port, versions)
            key = f"{name}:{secrets.token_hex(4)}"
            doctor = Doctor(backend, key, card, self.clock, threading.Event().wait, cannot_reach)
            endpoint = self.plan.settings.rdzv_endpoint
            met = within(patience + _FAREWELL, lambda: doctor.meet(peers, patience), endpoint)
        yield from judged_peers(met, doctor.card, patience)


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def judged_secret(seal: HmacSeal) -> Iterator[CheckResult]:
    """Judge whether all doctors have the same secret."""
    if seal.refused:
        text = f"{counted(seal.refused, 'announcement')} not signed with this machine's secret"
        yield fault(Check.SECRET, text, "use the same --rdzv-secret-file on every node")
    elif seal.signs:
        yield ok(Check.SECRET, "all doctors have the same secret")


def _refused(error: ConfigurationError) -> CheckResult:
    """Return the result for an error whose message may end with advice, separated by a semicolon."""
    text, _, advice = str(error).partition("; ")
    return fault(Check.BACKEND, text, advice or "correct it")


@dataclass(frozen=True)
class Answered:
    """The store's answers to several reads.

    Args:
        seconds: duration of each read, except for the first one, which also connects.
        state: the job's state, if there is one.
        unreadable: why the state cannot be read.
    """

    seconds: tuple[Duration, ...]
    state: State | None = None
    unreadable: str = ""


def asked(backend: RendezvousBackend, clock: Clock) -> Answered:
    """Read the state several times. Raises RendezvousConnectionError if the store does not answer."""
    seconds: list[Duration] = []
    found, unreadable = None, ""
    for _ in range(_READS + 1):
        begun = clock.now()
        try:
            found = backend.get_state()
        except RendezvousStateError as error:  # the state has no valid signature
            unreadable = str(error)
        seconds.append(clock.now() - begun)
    try:
        return Answered(tuple(seconds[1:]), None if found is None else decoded_state(found[0]), unreadable)
    except RendezvousError as error:
        return Answered(tuple(seconds[1:]), unreadable=str(error))


def judged_store(answered: Answered, run_id: str) -> Iterator[CheckResult]:
    """Judge how fast the store answers, and whether a job with this id may start."""
    median, worst = statistics.median(answered.seconds), max(answered.seconds)
    text = f"answers in {median * 1000:.2f} ms, at most {worst * 1000:.2f} ms ({len(answered.seconds)} reads)"
    if worst < _SLOW:
        yield ok(Check.STORE, text)
    else:
        advice = "this delays all messages between nodes; check the load on the store's machine, and the network"
        yield warning(Check.STORE, text, advice)
    another, state = "choose another --rdzv-id", answered.state
    if answered.unreadable:
        why, _, advice = answered.unreadable.rpartition("; ")
        yield fault(Check.RUN_ID, f"the state of the job {run_id!r} cannot be read: {why or advice}", advice or another)
    elif state is None:
        yield ok(Check.RUN_ID, f"the id {run_id!r} is unused")
    elif state.closed:
        text = f"the job {run_id!r} is over, closed by {state.closed.by}: {state.closed.reason}"
        yield fault(Check.RUN_ID, text, f"{another}: elastic run would exit immediately")
    else:
        advice = "a node that starts now joins this job; elastic status shows it"
        yield note(Check.RUN_ID, f"the job {run_id!r} already exists, in round {state.round}", advice)
