"""What the doctor says: one finding per thing that was looked at, and the exit code of them all. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level(str, enum.Enum):
    """How bad it is. NOTE: worth knowing. WARNING: the run may start, and suffer. FAULT: it would not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


class Check(str, enum.Enum):
    """What is looked at, in this order."""

    VERSIONS = "versions"
    PLUGINS = "plugins"
    BACKEND = "backend"
    PYTHON = "python"
    KERNEL = "kernel"
    FILE_LIMIT = "file-limit"
    PROCESS_LIMIT = "process-limit"
    SHARED_MEMORY = "shared-memory"
    TORCH = "torch"
    ACCELERATORS = "accelerators"
    NAME = "name"
    REVERSE_LOOKUP = "reverse-lookup"
    ADDRESS = "address"
    PORT = "port"
    HEALTH_PORT = "health-port"
    CONNECTION = "connection"
    STORE = "store"
    RUN_ID = "run-id"
    PEERS = "peers"
    PEER_VERSIONS = "peer-versions"
    CLOCKS = "clocks"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `told`: what was found. `advice`: what to do, empty where there is nothing."""

    level: Level
    check: Check
    told: str
    advice: str = ""


_OTHER_CODES = {Check.STORE: ExitCode.STORE_UNREACHABLE, Check.PEERS: ExitCode.RENDEZVOUS_TIMEOUT}


def ok(check: Check, told: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, check, told)


def note(check: Check, told: str, advice: str = "") -> Finding:
    """Worth knowing."""
    return Finding(Level.NOTE, check, told, advice)


def warning(check: Check, told: str, advice: str) -> Finding:
    """The run may suffer from it."""
    return Finding(Level.WARNING, check, told, advice)


def fault(check: Check, told: str, advice: str) -> Finding:
    """The run would not work."""
    return Finding(Level.FAULT, check, told, advice)


def exit_code_of(findings: Iterable[Finding]) -> ExitCode:
    """That of the fault which is to be cured first: this machine and its flags, then the store, then the peers."""
    at_fault = {finding.check for finding in findings if finding.level is Level.FAULT}
    if at_fault - _OTHER_CODES.keys():
        return ExitCode.BAD_CONFIGURATION
    return next((code for check, code in _OTHER_CODES.items() if check in at_fault), ExitCode.SUCCESS)
