"""Registers the command `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import CommandRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Context


def _run(context: Context, words: Sequence[str]) -> int:
    from elastic_doctor.command import run

    return run(context, words)


@hookimpl
def elastic_commands() -> list[CommandRecord]:
    summary = "check this machine and its connections to other nodes before a run"
    return [CommandRecord("doctor", summary, _run, options=None)]  # it takes the flags of run, too
