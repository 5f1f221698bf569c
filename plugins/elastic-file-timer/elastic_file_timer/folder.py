"""Where the pipe lies: who can write there can take it away, and put another one in its place."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from elastic_core.plugin import ConfigurationError, Problem, why_untrusted


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


def make_again(folder: Path) -> None:
    """Make a private folder again that was removed. Raises OSError if somebody else was quicker."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(errno.EEXIST, f"{folder} belongs to user {status.st_uid} by now")


def check(path: Path) -> None:
    """Whether the user may trust what lies at `path`.

    Raises:
        ConfigurationError: there is no such folder, or others could remove or replace what lies in it.
    """
    try:
        why = why_untrusted(path.parent)
    except OSError as error:
        raise refused(
            path, f"a folder that exists, found that {path.parent} cannot be used: {error.strerror}"
        ) from error
    if why:
        raise refused(path, f"a folder in which only you and root can replace it, found that {why}")


def refused(path: Path, problem: str) -> ConfigurationError:
    """The pipe cannot lie there."""
    text = f"expected for the pipe {path} {problem}; name another one in TORCHELASTIC_TIMER_FILE, or none at all"
    return ConfigurationError(Problem("timer pipe", text))
