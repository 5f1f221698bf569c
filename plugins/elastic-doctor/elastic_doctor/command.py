"""The `elastic doctor` command, its flags and its help text."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.diagnostics import (
    Command,
    configure_log,
    integer,
    own_flag,
    parse_boolean,
    plan_for,
    read_like_run,
    script_entry,
    seconds,
    show,
    to_json,
)
from elastic_core.plugin import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Context, Duration


def run(context: Context, words: Sequence[str]) -> int:
    """Check this machine, print the findings, and return the exit code. Raises ConfigurationError for invalid
    arguments."""
    from elastic_doctor import examine, finding

    manager, reading = read_like_run(words, DOCTOR, new_run_id=lambda: "doctor")
    configure_log(reading, manager)
    plan, options, script = plan_for(reading, manager), DoctorOptions(**reading.own), reading.script
    work = script_entry(plan.settings, script, reading.script_args, os.environ).work if script else None
    findings = examine.findings(plan, options, work)
    report = (socket.gethostname(), plan.settings, findings)
    show(to_json(finding.as_dict(*report)) if options.json else finding.as_text(*report))
    return finding.exit_code_of(findings)


@dataclass(frozen=True)
class DoctorOptions:
    """The values of the flags in `DOCTOR`."""

    json: bool = False
    expect_store: bool = False
    peers: int = 0
    timeout: Duration = 10.0
    peers_timeout: Duration = 60.0


DOCTOR = Command(
    "doctor",
    """\
usage: elastic doctor [flags] [flags of elastic run] [script]

Checks whether a run with the same flags, variables and config file would work on this machine:
plugins, versions, limits, torch, names and addresses, and the connection to the store. It starts no
workers, changes nothing, and does not run the script. For each problem, it suggests a remedy. For
the flags of elastic run, see elastic run --help.
""",
    {},
    (
        own_flag("json", parse_boolean, False, "print JSON"),
        own_flag("expect_store", parse_boolean, False, "report an unreachable store as a fault"),
        own_flag(
            "peers",
            integer(0),
            0,
            "number of doctors, including this one, that connect to each other and compare versions",
            "N",
        ),
        own_flag(
            "timeout",
            seconds(above=0),
            DoctorOptions.timeout,
            "time limit for each check that may hang",
            "S",
            "seconds",
        ),
        own_flag(
            "peers_timeout",
            seconds(above=0),
            DoctorOptions.peers_timeout,
            "how long to wait for all doctors to join",
            "S",
            "seconds",
        ),
    ),
    example="elastic doctor --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py",
    codes={
        ExitCode.SUCCESS: "no faults; there may be warnings",
        ExitCode.BAD_CONFIGURATION: "a run would fail on this machine, or with these flags",
        ExitCode.RENDEZVOUS_TIMEOUT: "too few doctors joined (--peers)",
        ExitCode.STORE_UNREACHABLE: "the store does not answer, although a server listens, or --expect-store or "
        "--peers is set",
    },
    like_run=True,
)
