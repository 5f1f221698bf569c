"""Creates and checks the pipe's folder. A user who can write to the folder could replace the pipe."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from elastic_core.plugin import ConfigurationError, Problem, distrust_reason


def make_private() -> Path:
    """Create a folder that no other user can access.

    Raises:
        ConfigurationError: the folder cannot be created.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="elastic-timer-")).absolute()
    except OSError as error:
        where = f" in {Path(error.filename).parent}" if error.filename else ""
        text = (
            f"cannot create a private folder for the pipe{where}: {error.strerror or error}; set TMPDIR to another "
            "folder, or TORCHELASTIC_TIMER_FILE to the path of the pipe"
        )
        raise ConfigurationError(Problem("timer pipe", text)) from error


def make_again(folder: Path) -> None:
    """Recreate a private folder that was removed. Raises OSError if another user has created it first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(errno.EEXIST, f"user {status.st_uid} has replaced {folder}")


def check(path: Path) -> None:
    """Check that no other user can replace `path`.

    Raises:
        ConfigurationError: the folder does not exist, or other users could remove or replace its files.
    """
    try:
        why = distrust_reason(path.parent)
    except OSError as error:
        raise refused(path, f"{path.parent}: {error.strerror}") from error
    if why:
        raise refused(path, f"other users could replace it: {why}")


def refused(path: Path, problem: str) -> ConfigurationError:
    """Return the error for a path that cannot be used."""
    advice = "set another path (--watchdog-conf path=, TORCHELASTIC_TIMER_FILE), or none"
    text = f"cannot use the pipe {path}: {problem}; {advice}"
    return ConfigurationError(Problem("timer pipe", text))
