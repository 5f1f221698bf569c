"""Files that hold a secret. They are read only if no other user can have read or written them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from pathlib import Path

MOST_BYTES = 4096
_SET_DUMPABLE = 4  # for prctl
_MOST_STEPS = 100  # folders and links on the way to a file
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOUND = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The content of the file without trailing line ends, which editors and `echo` add.

    As with ssh keys, only this user may read this user's file. A group may read root's file, as Kubernetes arranges for
    the `fsGroup` of a pod. All users may read root's file only on a read-only mount in memory: there Kubernetes and
    Docker put secrets, with mode 0644 or 0444 by default, and only the processes of the container see that mount. An
    ordinary file of root's with these modes is refused, because every user of the machine can read it.

    From then on this process leaves no core dump, and other processes of its user cannot read its memory; root can.

    Links are followed if root or this user made them. Otherwise a user who may write next to a secret could redirect
    the agent to another file, whose content that user knows. The checks are done on the opened file, which cannot be
    replaced any more.

    Raises:
        ValueError: there is no such file; it is not a regular file; another user owns it, or can read or write it; it
            is empty, or larger than 4 KiB. No message contains its content.
    """
    shown = os.fspath(path)
    try:
        found = _find(Path(path).absolute())
        try:
            _expect_private(found, shown)
            content = _content(found)
        finally:
            os.close(found)
    except OSError as error:
        raise ValueError(f"expected a file that holds a secret, found {shown}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"expected a secret of {MOST_BYTES} bytes at most, found more in {shown}; name another file")
    if not (secret := content.rstrip(b"\r\n")):
        raise ValueError(f"expected a secret, found that {shown} is empty; write one into it, or name another file")
    keep_memory_private()
    return secret


def keep_memory_private() -> None:
    """Disable core dumps, and keep other processes of the same user from reading this process's memory: both would
    reveal the secret. Programs that this one starts are not affected. ssh-agent does the same."""
    with contextlib.suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _find(path: Path) -> int:
    """A descriptor of the file that cannot be read from, so that the file can be checked first."""
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
        raise ValueError(f"expected a file, found more than {_MOST_STEPS} folders and links on the way to {path}")
    except BaseException:
        os.close(at)
        raise


def _target(link: int, path: Path) -> Path:
    target, owner = Path(os.readlink("", dir_fd=link)), os.fstat(link).st_uid
    if owner not in (0, os.geteuid()):
        raise ValueError(
            f"expected links of root or of this user on the way to {path}, found one to {target} of user {owner}; "
            "name the file itself"
        )
    return target


def _expect_private(found: int, path: str) -> None:
    """Raises ValueError."""
    status = os.fstat(found)
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"expected an ordinary file that holds a secret, found that {path} is none; name another")
    if owner not in (0, os.geteuid()):
        raise ValueError(f"expected a secret in a file of root or of this user, found that {path} is of user {owner}")
    if mode & 0o022:
        raise _open_to("write", mode, path, owner)
    if mode & (0o004 if owner == 0 else 0o044) and not (owner == 0 and _is_mounted_secret(found)):
        raise _open_to("read", mode, path, owner)


def _open_to(do: str, mode: int, path: str, owner: int) -> ValueError:
    advice = f"run `chmod 600 {path}`" if owner == os.geteuid() else f"let root run `chmod 640 {path}`"
    return ValueError(f"expected a secret that others cannot {do}, found mode {mode:04o} on {path}; {advice}")


def _is_mounted_secret(found: int) -> bool:
    """Whether the file is in a file system in memory, mounted read-only."""
    if not os.fstatvfs(found).f_flag & os.ST_RDONLY:
        return False
    device = os.fstat(found).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(line[2] == number and line[line.index("-") + 1] in ("tmpfs", "ramfs") for line in lines)


def _content(found: int) -> bytes:
    with open(os.open(f"/proc/self/fd/{found}", _OPENED), "rb") as file:
        return file.read(MOST_BYTES + 1)
