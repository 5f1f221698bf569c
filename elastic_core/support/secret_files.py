"""Reads files that contain a secret, provided that no other user can have read or written them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import stat
from pathlib import Path

MOST_BYTES = 4096
_SET_DUMPABLE = 4  # for prctl
_MOST_STEPS = 100  # folders and links on the path to a file
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOUND = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a secret file, without the trailing newlines that editors and `echo` add. `~` in the path
    means the home directory.

    A file that belongs to this user must be readable by this user alone, as with ssh keys. If the file belongs to root,
    a group may also read it, because Kubernetes sets this up for a pod's `fsGroup`.

    If all users may read a file that belongs to root, the file must be on a read-only in-memory mount. Kubernetes and
    Docker put secrets on such mounts, by default with mode 0644 or 0444, and only the container's processes see them.
    Elsewhere, every user of the machine could read the file.

    Links are followed only if root or this user created them. Otherwise, a user who can write next to a secret could
    redirect the agent to a file whose content that user knows. All checks apply to the opened file, which cannot be
    replaced anymore. After this call, the process's memory is private (`keep_memory_private`).

    Raises:
        ValueError: there is no such file; it is not a regular file; another user owns it, or can read or write it; it
            is empty, or larger than 4 KiB. No message contains its content.
    """
    shown = os.fspath(path)
    try:
        found = _find(Path(path).expanduser().absolute())
        try:
            _expect_private(found, shown)
            content = _content(found)
        finally:
            os.close(found)
    except (OSError, RuntimeError) as error:  # RuntimeError: the home directory of an unknown user
        raise ValueError(f"cannot read the secret file {shown}: {getattr(error, 'strerror', error)}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"expected a secret of at most {MOST_BYTES} bytes, but {shown} is larger; use another file")
    if not (secret := content.rstrip(b"\r\n")):
        raise ValueError(f"the secret file {shown} is empty; write a secret into it, or use another file")
    keep_memory_private()
    return secret


def keep_memory_private() -> None:
    """Protect the secret in this process's memory: disable core dumps, and keep other processes of the same user from
    reading the memory. Processes that this process starts or forks are not affected; forked ones have a copy of
    the secret. ssh-agent does the same."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        _dumpable_forks()


@functools.cache
def _dumpable_forks() -> None:
    """Make forked children dumpable. Otherwise, torch could not pass file descriptors between forked workers."""
    os.register_at_fork(after_in_child=functools.partial(ctypes.CDLL(None).prctl, _SET_DUMPABLE, 1, 0, 0, 0))


def _find(path: Path) -> int:
    """Return a descriptor for the file that allows checks but not reading."""
    at, names = os.open("/", _FOUND), [*reversed(path.parts[1:])]
    try:
        for _ in range(_MOST_STEPS):
            if not names:
                return at
            found = os.open(names.pop(), _FOUND, dir_fd=at)
            if stat.S_ISLNK(os.fstat(found).st_mode):
                try:
                    names += reversed(_target(found, path).parts)  # the "/" of an absolute target restarts at the root
                finally:
                    os.close(found)
            else:
                os.close(at)
                at = found
        raise ValueError(f"cannot open {path}: the path leads through more than {_MOST_STEPS} folders and links")
    except BaseException:
        os.close(at)
        raise


def _target(link: int, path: Path) -> Path:
    target, owner = Path(os.readlink("", dir_fd=link)), os.fstat(link).st_uid
    if owner not in (0, os.geteuid()):
        raise ValueError(
            f"links on the path to {path} must belong to root or this user, but the link to {target} belongs to user "
            f"{owner}; name the file itself"
        )
    return target


def _expect_private(found: int, path: str) -> None:
    """Raise ValueError unless the file is a regular file that other users can neither read nor write."""
    status = os.fstat(found)
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"the secret must be in a regular file, and {path} is not one")
    if owner not in (0, os.geteuid()):
        raise ValueError(f"the secret file must belong to root or this user, but {path} belongs to user {owner}")
    if mode & 0o022:
        raise _open_to("write", mode, path, owner)
    if mode & (0o004 if owner == 0 else 0o044) and not (owner == 0 and _is_mounted_secret(found)):
        raise _open_to("read", mode, path, owner)


def _open_to(do: str, mode: int, path: str, owner: int) -> ValueError:
    advice = f"run `chmod 600 {path}`" if owner == os.geteuid() else f"as root, run `chmod 640 {path}`"
    return ValueError(f"other users can {do} the secret in {path} (mode {mode:04o}); {advice}")


def _is_mounted_secret(found: int) -> bool:
    """Return whether the file is on a read-only in-memory file system."""
    if not os.fstatvfs(found).f_flag & os.ST_RDONLY:
        return False
    device = os.fstat(found).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(line[2] == number and line[line.index("-") + 1] in ("tmpfs", "ramfs") for line in lines)


def _content(found: int) -> bytes:
    with open(os.open(f"/proc/self/fd/{found}", _OPENED), "rb") as file:
        return file.read(MOST_BYTES + 1)
