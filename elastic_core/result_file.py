"""The result file: the outcome of one run as JSON, for programs. Version 1 of its schema is in docs/reference."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ChildFailedError, ConfigurationError, ExitCode, Problem, failures_of
from elastic_core.support import files

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.observers import History

SCHEMA_VERSION = 1


def check_writable(path: Path) -> None:
    """Find out before the job runs that its outcome could not be written. Raises ConfigurationError."""
    try:
        target = files.followed(path.absolute())
        files.check_existing(target)
        place = target if _is_special(target) else target.parent
        if os.access(place, os.W_OK) and not target.is_dir():
            return
        found = "a place that cannot be written" if place.exists() else "no such folder"
    except OSError as error:
        found = f"{error.strerror}: {error.filename}"
    raise ConfigurationError(
        Problem(
            "--result-file", f"expected a file in a folder that can be written, found {path}: {found}; name another"
        )
    )


def outcome(run_id: str, exit_code: int, error: BaseException | None, history: History) -> dict[str, Any]:
    """The file's content."""
    finished = history.finished
    first = _first_failure(error)
    message = error.summary if isinstance(error, ChildFailedError) else str(error or "")
    return {
        "version": SCHEMA_VERSION,
        "run_id": run_id,
        "state": "SUCCEEDED" if exit_code == ExitCode.SUCCESS else finished.state if finished else "FAILED",
        "exit_code": int(exit_code),
        "reason": finished.reason if finished else message,
        "error": None if error is None else {"type": type(error).__name__, "message": message},
        "restart_count": finished.restart_count if finished else 0,
        "first_failure": first,
        **history.as_dict(),
    }


def _first_failure(error: BaseException | None) -> dict[str, Any] | None:
    failures = failures_of(error)
    return ChildFailedError("", failures).get_first_failure()[1].as_dict() if failures else None


def write(path: Path, content: dict[str, Any]) -> None:
    """In one step: whoever reads the file finds a whole one. A link of the user's stays, and what it points at is
    replaced; to a device or a pipe the outcome is written.

    Raises:
        OSError: it cannot be written, or what is there was put there by somebody else.
        ValueError, TypeError, RecursionError: something in `content` cannot be told in JSON.
    """
    text = _as_json(content) + "\n"
    target = files.followed(path.absolute())
    if not _is_special(target):
        files.replace(target, text)
        return
    with open(files.open_to_append(target), "w") as file:
        file.write(text)


def _as_json(content: dict[str, Any]) -> str:
    """JSON that every reader takes: numbers it has no word for, which a script may have written, become text."""
    told = json.loads(json.dumps(content, default=str), parse_constant=str)
    return json.dumps(told, indent=2, allow_nan=False)


def _is_special(path: Path) -> bool:
    """A device, a pipe or an open file, such as /dev/stdout: written to, never replaced by a file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return files.is_descriptor(path) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
