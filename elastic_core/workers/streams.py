"""Plans where each worker's output streams go.

If a stream goes only to a file, the worker writes that file directly. Otherwise, stderr passes through the agent, so
that failure reports can show its last lines. Stdout passes through the agent if there are several workers, whose lines
must stay whole, or if the user wants prefixes, filters or hang detection. In all other cases, the worker writes
directly to the agent's own stdout, which may be a terminal.

On a terminal, the lines of several workers begin with the rank. In a file or a pipe, the lines are unchanged unless
`--tee` adds a prefix."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import RoundPlan, WorkerRanks


class Stream(enum.IntEnum):
    """The two output streams. Their values are the bits of torchrun's `--redirects` and `--tee`."""

    OUT = 1
    ERR = 2

    @property
    def suffix(self) -> str:
        return self.name.lower()


DEFAULT_PREFIX = "[${role_name}${local_rank}]:"
TERMINAL_PREFIX = "[rank${rank}] "

StreamChoice = Callable[[int], int]
"""Maps a local rank to bits of `Stream`."""


@dataclass(frozen=True)
class Placement:
    """The paths of one round's files, as chosen by a `logs_specs` object, by local rank and stream. A stream without a
    file goes to the console. A stream in `teed` goes to both. `filtered` contains the files for the filtered lines of
    all workers."""

    files: Mapping[tuple[int, Stream], str] = field(default_factory=dict)
    teed: frozenset[tuple[int, Stream]] = frozenset()
    error_files: Mapping[int, str] = field(default_factory=dict)
    filtered: Mapping[Stream, str] = field(default_factory=dict)


Placer = Callable[[dict[int, dict[str, str]]], Placement]
"""Called once per round with the workers' environments by local rank. The placer may add variables to these
environments."""


def _nothing(local_rank: int) -> int:
    return 0


@dataclass(frozen=True)
class OutputPolicy:
    """The user's choices for output.

    Args:
        ranks_filter: the local ranks whose output is shown on the console; if empty, all.
        prefix_template: the prefix of `tee` lines and filtered lines, for all workers or by local rank (default:
            DEFAULT_PREFIX), and of other lines on a terminal (default: TERMINAL_PREFIX).
        terminals: which of this process's streams are terminals.
        watched: whether output is used as a sign of progress. If so, every stream must pass through the agent or go to
            a file.
    """

    redirects: StreamChoice = _nothing
    tee: StreamChoice = _nothing
    ranks_filter: frozenset[int] = frozenset()
    prefix_template: str | Mapping[int, str] | None = None
    terminals: frozenset[Stream] = frozenset()
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    log_dir: Path | None = None
    placer: Placer | None = None
    watched: bool = False


@dataclass(frozen=True)
class StreamPlan:
    """The plan for one worker's stream. If it is not `captured`, the worker inherits the agent's stream."""

    captured: bool
    console: bool = True
    prefix: bytes = b""
    terminal: bool = False
    file: Path | None = None
    filtered: Path | None = None
    filters: tuple[bytes, ...] = ()
    label: bytes = b""  # the prefix of filtered lines, because all workers share the file
    keeps_tail: bool = False


def plan_stream(
    stream: Stream,
    ranks: WorkerRanks,
    plan: RoundPlan,
    policy: OutputPolicy,
    folder: Path,
    placement: Placement | None = None,
) -> StreamPlan:
    """Return the plan for one stream of the worker with these ranks. `folder` is the round's log folder. `placement`
    overrides the files that the policy would choose."""
    if placement is not None:
        tee = (ranks.local, stream) in placement.teed
        file = Path(placement.files[ranks.local, stream]) if (ranks.local, stream) in placement.files else None
    else:
        tee = bool(policy.tee(ranks.local) & stream)
        wanted = tee or bool(policy.redirects(ranks.local) & stream)
        file = folder / f"rank-{ranks.world}.{stream.suffix}" if wanted else None
    chosen = placement.filtered.get(stream) if placement else None
    to_file = file is not None
    shown = not policy.ranks_filter or ranks.local in policy.ranks_filter
    filters = policy.stdout_filters if stream is Stream.OUT else policy.stderr_filters
    terminal = stream in policy.terminals
    template = policy.prefix_template
    label = line_prefix(DEFAULT_PREFIX if template is None else template, ranks, plan)
    on_terminal = template is None and not (tee or policy.tee(ranks.local))
    prefix = line_prefix(TERMINAL_PREFIX, ranks, plan) if on_terminal else label
    return StreamPlan(
        captured=stream is Stream.ERR or policy.watched or to_file or bool(filters) or not shown or len(plan.ranks) > 1,
        console=shown and (tee or not to_file),
        prefix=prefix if tee or (terminal and len(plan.ranks) > 1) else b"",
        terminal=terminal,
        file=file,
        filtered=(Path(chosen) if chosen else folder / f"filtered.{stream.suffix}") if filters else None,
        filters=tuple(map(_as_bytes, filters)),
        label=label if filters else b"",
        keeps_tail=stream is Stream.ERR,
    )


def _as_bytes(text: str) -> bytes:
    """Encode text from the command line, preserving bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def line_prefix(template: str | Mapping[int, str], ranks: WorkerRanks, plan: RoundPlan) -> bytes:
    """Return the prefix for a worker's lines. The template may contain the names that are listed below."""
    names = {
        "role_name": plan.role,
        "local_rank": ranks.local,
        "rank": ranks.world,
        "group_rank": plan.group_rank,
        "host": plan.node,
        "run_id": plan.run_id,
        "round": plan.round,
    }
    text = template if isinstance(template, str) else template.get(ranks.local, DEFAULT_PREFIX)
    return _as_bytes(Template(text).safe_substitute(names))


def round_folder(log_dir: Path, plan: RoundPlan) -> Path:
    """Return `<log-dir>/<run-id>/round-<n>`. A run id that would lead outside the log folder is changed."""
    name = plan.run_id.replace("/", "_")
    return log_dir / (name if name.strip(".") else name.replace(".", "_")) / f"round-{plan.round}"
