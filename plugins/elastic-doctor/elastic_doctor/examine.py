"""Runs all checks of this machine, its settings and the store. Checks that have to wait run in parallel, with a time
limit. The findings have a fixed order."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import statistics
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.diagnostics import (
    CORE,
    GRACE,
    StatusBoard,
    decoded_state,
    health_checks,
    notice_sources,
    own_version,
    result_of,
    within,
)
from elastic_core.plugin import (
    BackgroundCall,
    CallTimeout,
    CheckLevel,
    CheckMoment,
    CheckResult,
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
from elastic_doctor.finding import Check, Finding, Level, fault, note, ok, warning
from elastic_doctor.network import judged_store_absence, listening, meets_itself, surroundings_of
from elastic_doctor.peers import Announcement, Doctor, cannot_reach, judged_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.diagnostics import HmacSeal, Plan, State
    from elastic_core.plugin import (
        Clock,
        Duration,
        HealthCheck,
        RendezvousBackend,
        RosterBackend,
        Settings,
        Work,
    )
    from elastic_doctor.command import DoctorOptions
    from elastic_doctor.network import NetworkFindings

_FOR_TORCH: Duration = 60.0
_LEVELS = {
    CheckLevel.OK: Level.OK,
    CheckLevel.SKIPPED: Level.NOTE,
    CheckLevel.WARNING: Level.WARNING,
    CheckLevel.FAILURE: Level.FAULT,
}
_FAREWELL: Duration = 30.0
_READS = 10
_SLOW: Duration = 0.1


@dataclass(frozen=True)
class Examination:
    """Checks everything that a run with this plan needs.

    Args:
        ask_torch: see `machine.probed_torch`.
        work: the script that the workers would run, if one was given.
    """

    plan: Plan
    options: DoctorOptions
    clock: Clock = field(default_factory=SystemClock)
    ask_torch: Callable[[str, Duration], machine.Torch] = machine.probed_torch
    work: Work | None = None

    @property
    def settings(self) -> Settings:
        return self.plan.settings

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, in the order of the report. The checks take at most a small multiple of
        `options.timeout`, plus the time for peers, and leave nothing running. Problems are returned as findings, not
        raised as errors."""
        order = list(Check)
        findings = sorted(self._findings(), key=lambda finding: order.index(finding.check))
        if any(finding.check is Check.BACKEND and finding.level is Level.FAULT for finding in findings):
            # The finding that the backend is installed would contradict this fault.
            findings = [item for item in findings if item.check is not Check.BACKEND or item.level is not Level.OK]
        answered = any(finding.check is Check.RUN_ID for finding in findings)
        listened = any(finding.check is Check.CONNECTION and finding.level is Level.OK for finding in findings)
        if answered and not listened:  # a doctor has served the store in the meantime, so these findings are outdated
            return tuple(finding for finding in findings if finding.check is not Check.CONNECTION)
        return tuple(findings)

    def _findings(self) -> Iterator[Finding]:
        settings, workers = self.settings, self.settings.nproc_per_node
        for_torch = max(_FOR_TORCH, self.options.timeout)
        kind = workers if isinstance(workers, str) and workers != "cpu" else "auto"
        torch = BackgroundCall(lambda: self.ask_torch(kind, for_torch))
        yield machine.judged_versions(machine.versions_of(self.plan.manager, own_version()))
        yield from machine.judged_plugins(self.plan.manager)
        yield from machine.judged_choices(self.plan)
        yield from self._unusable()
        record = self.plan.manager.backend_named(settings.rdzv_backend)
        around = surroundings_of(settings, record, self.nodes, self.options.timeout, self.clock)
        yield from around.findings
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield machine.judged_files(soft, hard, self.nodes if around.may_host else 0)
        yield from self._checks()
        try:
            found = torch.result(2 * for_torch)
        except CallTimeout:  # in a hanging driver call, the subprocess ignores SIGKILL
            found = machine.Torch(problem=f"no answer within {2 * for_torch:g} s")
        yield from machine.judged_torch(found, workers)
        if record is not None and RendezvousBackendRecord in self.plan.chosen:
            versions = {CORE: own_version(), "Python": python_version(), "torch": found.version or "none"}
            yield from self._store(record, around, versions)

    def _unusable(self) -> Iterator[Finding]:
        """Yield a fault for each part that is installed but that a run could not create."""
        plan = self.plan
        if plan.error is not None:
            return  # `judged_choices` reports it
        board = StatusBoard("", "", "", 0, self.clock)
        makers: list[Callable[[], object]] = [
            plan.made_watchdog,
            lambda: plan.made_health_endpoint(board),
            plan.made_rank_policy,
            lambda: notice_sources(plan.contexts, lambda seconds: False),
        ]
        if (work := self.work) is not None:
            makers.append(lambda: getattr(plan.start_with(work), "close", bool)())
        for make in makers:
            try:
                with plan.naming_origins():
                    make()
            except ConfigurationError as error:
                yield from (fault(Check.BACKEND, str(problem), "correct it") for problem in error.problems)

    def _checks(self) -> Iterator[Finding]:
        begun = self.clock.now()
        checks = health_checks(self.plan.contexts, CheckMoment.BEFORE_RUN)
        calls = [(check, BackgroundCall(check.make)) for check in checks]
        for check, call in calls:
            yield judged_check(check, result_of(check, call, max(0.0, check.timeout - (self.clock.now() - begun))))

    @property
    def nodes(self) -> int:
        return max(self.settings.nnodes.max, self.options.peers)

    def _store(
        self, record: RendezvousBackendRecord, around: NetworkFindings, versions: dict[str, str]
    ) -> Iterator[Finding]:
        expected = self.options.expect_store or bool(self.options.peers)
        if meets_itself(self.settings, record, self.nodes):
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
        if around.places and not (around.is_served or self.options.peers):
            where = self.settings.rdzv_endpoint
            yield self._broken() or judged_store_absence(self.options.expect_store, where, record.hosted)
            return
        try:
            yield from self._answers(record, around, versions)
        except RendezvousConnectionError as error:
            if around.is_served or expected:
                advice = "start elastic serve or the store's service there, or correct the endpoint"
                yield fault(Check.STORE, str(error), advice)
            else:
                advice = "fine if the job itself hosts the store; otherwise, correct the endpoint"
                yield note(Check.STORE, str(error), advice)
        except ConfigurationError as error:
            yield _refused(error)
        except Exception as error:  # noqa: BLE001 - keep the other findings if a plugin raises
            text = str(error) if isinstance(error, ElasticError) else described_error(error)
            yield fault(Check.STORE, text, "check the endpoint; report a plugin's traceback to its authors")

    def _answers(
        self, record: RendezvousBackendRecord, around: NetworkFindings, versions: dict[str, str]
    ) -> Iterator[Finding]:
        run_id = self.settings.rdzv_id or ""
        with self._served(record, around) as served:
            if served:
                yield note(Check.STORE, "no server was running, so this doctor hosted the store for its checks")
            patience = self.options.peers_timeout if self.options.peers else self.options.timeout
            with self.plan.opened(patience) as (backend, *_):
                found = within(patience + GRACE, lambda: asked(backend, self.clock), self.settings.rdzv_endpoint)
                yield from judged_store(found, run_id)
            if self.options.peers:
                meeting = replace(self.settings, rdzv_id=f"{run_id}.doctor")
                with replace(self.plan, settings=meeting).opened(patience) as (backend, seal, _):
                    try:
                        yield from self._peers(backend, around, versions)
                    except RendezvousConnectionError:
                        if not seal.refused:  # otherwise, a doctor with another secret hosted the store and has left
                            raise
                    yield from judged_secret(seal)

    def _broken(self) -> Finding | None:
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
            server = self.plan.store_server(self.settings.rdzv_endpoint, self.nodes)
            try:
                server.start()
            except ConfigurationError:  # another doctor on this machine has started the store first
                server = None
        try:
            yield server is not None
        finally:
            if server is not None:
                server.stop()

    def _peers(self, backend: RosterBackend, around: NetworkFindings, versions: dict[str, str]) -> Iterator[Finding]:
        host = socket.gethostname()
        name, patience, peers = f"{host}:{os.getpid()}", self.options.peers_timeout, self.options.peers
        with listening(2 * peers) as port:
            card = Announcement(name, around.advertised or host, port, versions)
            key = f"{name}:{secrets.token_hex(4)}"
            doctor = Doctor(backend, key, card, self.clock, threading.Event().wait, cannot_reach)
            met = within(patience + _FAREWELL, lambda: doctor.meet(peers, patience), self.settings.rdzv_endpoint)
        yield from judged_peers(met, doctor.card, patience)


def judged_check(check: HealthCheck, result: CheckResult) -> Finding:
    """Convert a health check's result to a finding. Checks of all other plugins are reported as `health-check`."""
    level = Level.NOTE if result.level is CheckLevel.OK and result.remedy else _LEVELS[result.level]
    if check.plugin == "elastic-doctor":
        return Finding(level, Check(check.name), result.message, result.remedy)
    return Finding(level, Check.HEALTH_CHECK, f"{check.name}: {result.message}", result.remedy)


def judged_secret(seal: HmacSeal) -> Iterator[Finding]:
    """Judge whether all doctors have the same secret."""
    if seal.refused:
        text = f"{counted(seal.refused, 'announcement')} not signed with this machine's secret"
        yield fault(Check.SECRET, text, "use the same --rdzv-secret-file on every node")
    elif seal.signs:
        yield ok(Check.SECRET, "all doctors have the same secret")


def _refused(error: ConfigurationError) -> Finding:
    """Return the finding for an error whose message may end with advice, separated by a semicolon."""
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


def judged_store(answered: Answered, run_id: str) -> Iterator[Finding]:
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
