"""Where the pipe lies: who can write there can take it away, and put another one in its place."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger


def make_private() -> Path:
    """A new folder that nobody else of this machine can look into.

    Raises:
        ConfigurationError: it cannot be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="elastic-timer-")).absolute()
    except OSError as error:
        where = f" in {Path(error.filename).parent}" if error.filename else ""
        text = (
            f"expected that a private folder for the pipe can be made{where}, found: {error.strerror or error}; "
            "name another folder in TMPDIR, or the pipe in TORCHELASTIC_TIMER_FILE"
        )
        raise ConfigurationError(Problem("timer pipe", text)) from error


def check(path: Path) -> None:
    """Whether the user may trust what lies at `path`. Says so in the log if others of the user's group could remove it.

    Raises:
        ConfigurationError: there is no such folder, or anybody could remove what lies in it.
    """
    folder = path.parent
    try:
        status = folder.stat()
    except OSError as error:
        raise refused(path, f"a folder that exists, found that {folder} cannot be used: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise refused(path, f"a folder of yours, found that {folder} belongs to user {status.st_uid}")
    if status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & stat.S_IWOTH:
        raise refused(path, f"a folder that others cannot write, found that everybody can write {folder}")
    if status.st_mode & stat.S_IWGRP:
        get_logger().warning("timer pipe exposed", path=str(path), reason=f"{folder} can be written by its group")


def refused(path: Path, problem: str) -> ConfigurationError:
    """The pipe cannot lie there."""
    text = f"expected for the pipe {path} {problem}; name another one in TORCHELASTIC_TIMER_FILE, or none at all"
    return ConfigurationError(Problem("timer pipe", text))
