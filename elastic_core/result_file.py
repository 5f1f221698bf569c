"""The result file: the outcome of one run as JSON. docs/reference describes version 1 of its schema."""

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
    """Check, before the job runs, that its outcome can be written. Raises ConfigurationError if it cannot."""
    try:
        target = files.followed(path.absolute())
        files.check_existing(target)
        place = target if _is_special(target) else target.parent
        if os.access(place, os.W_OK) and not target.is_dir():
            return
        reason = "not a writable file" if place.exists() else "no such folder"
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
    raise ConfigurationError(Problem("--result-file", f"cannot write to {path}: {reason}; choose another file"))


def outcome(run_id: str, exit_code: int, error: BaseException | None, history: History) -> dict[str, Any]:
    """Return the file's content."""
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
    """Replace the file atomically, so that readers never see a partial file. Symbolic links are followed. Devices and
    pipes are not replaced but written to.

    Raises:
        OSError: the file cannot be written, or another user created the existing file.
        ValueError, TypeError, RecursionError: `content` cannot be represented in JSON.
    """
    text = _as_json(content) + "\n"
    target = files.followed(path.absolute())
    if not _is_special(target):
        files.replace(target, text)
        return
    with open(files.open_to_append(target), "w") as file:
        file.write(text)


def _as_json(content: dict[str, Any]) -> str:
    """Convert the content to standard JSON. Numbers that JSON does not support, such as NaN, become strings."""
    standard = json.loads(json.dumps(content, default=str), parse_constant=str)
    return json.dumps(standard, indent=2, allow_nan=False)


def _is_special(path: Path) -> bool:
    """Return whether the path is a device, a pipe or an open file (such as /dev/stdout), which must not be replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return files.is_descriptor(path) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
