"""Errors of the operating system that a limit of this machine explains, with what to do about them."""

from __future__ import annotations

import errno

from elastic_core.errors import ConfigurationError, Problem

_REMEDIES = {
    errno.EMFILE: "this process has too many files open: raise `ulimit -n` or start fewer workers",
    errno.ENFILE: "the machine has too many files open: raise the sysctl fs.file-max",
    errno.EAGAIN: "too many processes: raise `ulimit -u` or the limit of the control group",
    errno.ENOMEM: "the machine is short of memory: start fewer workers",
    errno.E2BIG: "its arguments and environment are too long together",
}


def remedy(error: OSError) -> str | None:
    """What to do about the error; None when no limit explains it."""
    return _REMEDIES.get(error.errno or 0)


def cannot_start(error: OSError, workers: int) -> ConfigurationError:
    """For an error in the middle of starting `workers` workers."""
    found = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    advice = remedy(error) or "the log of the kernel (`dmesg`) may say more"
    return ConfigurationError(
        Problem("--nproc-per-node", f"expected to start {workers} workers, found: {found}; {advice}")
    )
