"""The whole examination: everything that waits is begun at once, each with a bound; findings come in a fixed order."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, ElasticError, RendezvousConnectionError
from elastic_core.hooks.discovery import CORE, described_error, own_version
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.operate.doctor import software
from elastic_core.operate.doctor.finding import Check, Level, fault, note
from elastic_core.operate.doctor.machine import judged_machine, measured_machine
from elastic_core.operate.doctor.network import judged_store_absence, listening
from elastic_core.operate.doctor.peers import Card, Doctor, cannot_reach, judged_peers
from elastic_core.operate.doctor.software import judged_torch, probed_torch
from elastic_core.operate.doctor.store import asked, judged_store
from elastic_core.operate.doctor.surroundings import Surroundings, surroundings_of
from elastic_core.operate.target import Target, opened, parameters
from elastic_core.support.bounded import Call, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.clock import Clock, Duration
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.operate.commands import DoctorOptions
    from elastic_core.operate.doctor.finding import Finding
    from elastic_core.operate.doctor.software import Torch

_FOR_TORCH: Duration = 60.0
_GRACE: Duration = 2.0  # for a backend to give up by itself: it knows better what is wrong
_FAREWELL: Duration = 30.0
_NEED_TORCH = ("c10d", "static")


def examined(
    settings: Settings,
    manager: PluginManager,
    options: DoctorOptions,
    clock: Clock | None = None,
    ask_torch: Callable[[str, Duration], Torch] = probed_torch,
) -> tuple[Finding, ...]:
    """Look at everything that the run of these settings needs on this machine, and around it. Takes `options.timeout` a
    few times at worst, and with peers their time, too. Starts nothing that stays. Never raises for what it finds."""
    examination = _Examination(settings, manager, options, clock or SystemClock(), ask_torch)
    order = list(Check)
    return tuple(
        sorted(_without_outdated(list(examination.findings())), key=lambda finding: order.index(finding.check))
    )


def _without_outdated(findings: list[Finding]) -> list[Finding]:
    """Without what was said of connections, if nobody listened then and the store has answered since, to peers."""
    answered = any(finding.check is Check.RUN_ID for finding in findings)
    listened = any(finding.check is Check.CONNECTION and finding.level is Level.OK for finding in findings)
    if answered and not listened:
        return [finding for finding in findings if finding.check is not Check.CONNECTION]
    return findings


@dataclass(frozen=True)
class _Examination:
    settings: Settings
    manager: PluginManager
    options: DoctorOptions
    clock: Clock
    ask_torch: Callable[[str, Duration], Torch]

    def findings(self) -> Iterator[Finding]:
        torch = Call(self._torch)
        yield software.judged_versions(software.versions_of(self.manager, own_version()))
        yield from software.judged_plugins(self.manager)
        yield from software.judged_choices(self.settings, self.manager)
        record = self._record()
        around = surroundings_of(self.settings, record, self.nodes, self.options.timeout, self.clock)
        yield from around.findings
        workers = self.settings.nproc_per_node
        machine = measured_machine()
        count = workers if isinstance(workers, int) else machine.cpus
        yield from judged_machine(machine, self.nodes, count, around.may_host)
        found = torch.result(2 * self.torch_timeout)
        yield from judged_torch(found, self.settings.rdzv_backend in _NEED_TORCH, workers)
        if record is not None:
            yield from self._store(record, around, found)

    @property
    def nodes(self) -> int:
        return max(self.settings.nnodes.max, self.options.peers)

    @property
    def torch_timeout(self) -> Duration:
        return max(_FOR_TORCH, self.options.timeout)

    def _torch(self) -> Torch:
        wanted = self.settings.nproc_per_node
        return self.ask_torch(wanted if isinstance(wanted, str) and wanted != "cpu" else "auto", self.torch_timeout)

    def _record(self) -> RendezvousBackendRecord | None:
        with contextlib.suppress(ConfigurationError):  # told as a finding
            return self.manager.select(RendezvousBackendRecord, self.settings.rdzv_backend)
        return None

    def _store(self, record: RendezvousBackendRecord, around: Surroundings, torch: Torch) -> Iterator[Finding]:
        if record.open_backend is None:
            if self.options.peers or self.options.expect_store:
                told = f"the backend {record.name!r} has no store that can be asked from outside"
                yield fault(
                    Check.STORE, told, "leave out --peers and --expect-store, or give a backend of several nodes"
                )
            return
        if not (around.somebody or self.options.peers or not around.places):
            yield judged_store_absence(self.options.expect_store, self.where, around.is_hosted)
            return
        try:
            yield from self._answers(record, around, torch)
        except RendezvousConnectionError as error:
            if around.somebody or self.options.expect_store or self.options.peers:
                yield fault(
                    Check.STORE, str(error), "start elastic serve, or the service, at that endpoint, or correct it"
                )
            else:
                advice = "well, if the job itself is to make the store; else correct the endpoint"
                yield note(Check.STORE, str(error), advice)
        except ConfigurationError as error:
            yield fault(Check.BACKEND, str(error), "correct it")
        except Exception as error:  # noqa: BLE001 - a plugin's; the other findings count
            told = str(error) if isinstance(error, ElasticError) else described_error(error)
            yield fault(Check.STORE, told, "check the endpoint; a traceback of a plugin is for its authors")

    @property
    def where(self) -> str:
        return self.settings.rdzv_endpoint

    def _answers(self, record: RendezvousBackendRecord, around: Surroundings, torch: Torch) -> Iterator[Finding]:
        with self._served(record, around) as served:
            if served:
                yield note(Check.STORE, "nobody served the store, so this doctor did, for as long as it took")
            patience = self.options.peers_timeout if self.options.peers else self.options.timeout
            params = parameters(self._target(self._run_id), self.manager, patience)
            with opened(params, self.manager) as backend:
                found = within(patience + _GRACE, lambda: asked(backend, self.clock), self.where)
                yield from judged_store(found, self._run_id)
            if self.options.peers:
                params = parameters(self._target(f"{self._run_id}.doctor"), self.manager, patience)
                with opened(params, self.manager) as backend:
                    yield from self._peers(backend, around, torch)

    @property
    def _run_id(self) -> str:
        return self.settings.rdzv_id or ""

    def _target(self, run_id: str) -> Target:
        return Target(self.settings.rdzv_backend, self.where, run_id, self.settings.rdzv_conf)

    @contextlib.contextmanager
    def _served(self, record: RendezvousBackendRecord, around: Surroundings) -> Iterator[bool]:
        """For peers, where nobody serves yet and this machine is the one that would: the store, until the end."""
        server = None
        if self.options.peers and not around.somebody and around.may_host and record.serve is not None:
            server = record.serve(self.where, self.nodes)
            try:
                server.start()
            except ConfigurationError:  # another doctor of this machine was first
                server = None
        try:
            yield server is not None
        finally:
            if server is not None:
                server.stop()

    def _peers(self, backend: RosterBackend, around: Surroundings, torch: Torch) -> Iterator[Finding]:
        host = socket.gethostname()
        versions = {CORE: own_version(), "Python": measured_machine().python, "torch": torch.version or "none"}
        key = f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
        patience = self.options.peers_timeout
        with listening(2 * self.options.peers) as port:
            card = Card(f"{host}:{os.getpid()}", around.advertised or host, port, versions)
            doctor = Doctor(backend, key, card, self.clock, threading.Event().wait, cannot_reach)
            met = within(patience + _FAREWELL, lambda: doctor.meet(self.options.peers, patience), self.where)
        yield from judged_peers(met, replace(doctor.card), patience)
