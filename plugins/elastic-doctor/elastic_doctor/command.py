"""The `elastic doctor` command."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from elastic_core.diagnostics import Plan, script_entry, show, to_json
from elastic_doctor import examine, finding
from elastic_doctor.options import DoctorOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Context


def run(context: Context, words: Sequence[str]) -> int:
    """Check this machine, print the findings, and return the exit code. `words` is the script, if one was given."""
    assert isinstance(context.plan, Plan)
    plan, options = context.plan, DoctorOptions(**context.options)
    work = script_entry(plan.settings, words[0], tuple(words[1:]), os.environ).work if words else None
    findings = examine.findings(plan, options, work)
    report = (socket.gethostname(), plan.settings, findings)
    show(to_json(finding.as_dict(*report)) if options.json else finding.as_text(*report))
    return finding.exit_code_of(findings)
