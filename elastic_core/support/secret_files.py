"""Files that hold a secret: read only if nobody else can have read them, or put them there."""

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
    """What the file holds, without the ends of lines after it: editors and `echo` leave one there.

    As with the keys of ssh, a file of this user is for this user alone. root may let a group read a file of his, as
    Kubernetes does for the `fsGroup` of a pod. That everybody may read it is accepted in one place only: below a mount
    in memory that is read-only, in a file of root's. The secrets of Kubernetes and Docker are there, with mode 0644 or
    0444 unless somebody asks for less, and none but the processes of the container see that mount. An ordinary file of
    root's with these modes is read by every user of the machine.

    From then on this process leaves no core dump, and others of its user cannot look into its memory; root can.

    Links are followed if root or this user made them: who may put files beside a secret could otherwise lead us to
    another one, whose content they know. What is judged is the opened file, which nobody can exchange any more.

    Raises:
        ValueError: there is no such file; it is not an ordinary one, of another user, or others can read or write it;
            it is empty, or larger than 4 KiB. Its content is in no message.
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
    """A core dump would have the secret, and so would the memory of this process for others of the same user. Programs
    that this one starts are not concerned. ssh-agent does the same."""
    with contextlib.suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _find(path: Path) -> int:
    """A descriptor of what is there, which cannot be read from: what it is comes first."""
    at, names = os.open("/", _FOUND), [*reversed(path.parts[1:])]
    try:
        for _ in range(_MOST_STEPS):
            if not names:
                return at
            found = os.open(names.pop(), _FOUND, dir_fd=at)
            if stat.S_ISLNK(os.fstat(found).st_mode):
                try:
                    names += reversed(_target(found, path).parts)  # "/", the first of an absolute one, begins anew
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
