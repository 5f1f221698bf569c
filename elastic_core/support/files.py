"""Safe file access in folders where other users of this machine can write. Except for `mapped` and `PageFile`, this
module never follows another user's link, waits for a pipe, or uses a file that another user has put into such a folder.
The kernel provides this protection (`fs.protected_symlinks`) only in sticky folders, and not on every machine.

`mapped` and `PageFile` give a worker and its agent a small file, in a folder that only this user can access. The worker
maps the file into its memory, because a script may close descriptors that it did not open."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MODE = 0o644
"""The mode of new files. The umask may remove permissions."""

_FOLDER_MODE = 0o755
_MOST_LINKS = 40  # the same number as in the kernel
_ALL_USERS = ["0", "0", "4294967295"]  # the user map of a namespace that knows all users


def distrust_reason(path: Path) -> str:
    """Return why a user other than this one or root can control the file or folder at the absolute `path`, for example
    by renaming or redirecting a folder on the path. Returns an empty string if no such user can. Raises OSError if
    there is nothing at `path`."""
    for here, status in _way(path):
        is_folder = stat.S_ISDIR(status.st_mode)
        if not (_is_ours(status) or (is_folder and _is_unknown(status.st_uid))):
            return f"{here} belongs to {_user(status.st_uid)}"
        if stat.S_ISLNK(status.st_mode) or (is_folder and status.st_mode & stat.S_ISVTX):
            continue
        if writable_by_others(status) and not os.statvfs(here).f_flag & os.ST_RDONLY:
            return f"other users may write to {here}"
    return ""


def foreign(path: Path) -> str:
    """Return why the file or link at the absolute `path` cannot be trusted, or an empty string if it can be.

    A file is not trusted if another user owns it or everyone can write to it. A group may have write access, and any
    user may own the folder. Raises OSError if there is no such file."""
    for here in (path, Path(os.path.realpath(path))):
        status = here.lstat()
        if not _is_ours(status):
            return f"{here} belongs to {_user(status.st_uid)}"
        if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IWOTH:
            return f"{here} is writable by everyone"
    return ""


def writable_by_others(status: os.stat_result) -> bool:
    """Return whether users other than the owner and members of the owner's private group can write to the file."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private(status.st_gid, status.st_uid)


def followed(path: Path) -> Path:
    """Return the target of the absolute `path` after following all links. The target need not exist.

    Raises:
        PermissionError: a link on the path belongs neither to this user nor to root nor to the owner of the link's
            folder. That owner may redirect folders but not files.
        OSError: a folder on the path is missing or inaccessible.
    """
    here = path
    with contextlib.suppress(FileNotFoundError):
        folder = Path("/").stat()
        for here, status in _way(path):
            if stat.S_ISLNK(status.st_mode) and not _is_ours(status) and status.st_uid != folder.st_uid:
                raise _refused(here, f"it is a link that belongs to {_user(status.st_uid)}")
            if stat.S_ISDIR(status.st_mode):
                folder = status
    return _end(path)


def _end(path: Path) -> Path:
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        try:
            status = path.lstat()
        except FileNotFoundError:
            return path
        if not stat.S_ISLNK(status.st_mode) or is_descriptor(path):
            return path
        if not _is_ours(status):
            raise _refused(path, f"it is a link that belongs to {_user(status.st_uid)}")
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def is_descriptor(path: Path) -> bool:
    """Return whether the path refers to an open file of this process, such as the target of the link /dev/stdout."""
    return path.parts[:2] == ("/", "proc") and path.parent.name == "fd"


def open_to_append(path: Path, mode: int = MODE, access: int = os.O_WRONLY) -> int:
    """Open the file at `path` for appending, and return the descriptor. A missing file is created with `mode`. `path`
    may also be a device, or a pipe that has a reader.

    Raises:
        OSError: the file cannot be opened; another user created it in a folder where others can write; or the pipe has
            no reader.
    """
    path = followed(path.absolute())
    flags = access | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags if is_descriptor(path) else flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "this pipe has no reader", str(path)) from error
    try:
        _check(os.fstat(fd), path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_existing(path: Path) -> None:
    """Raise PermissionError if `open_to_append` would refuse the file at `path`."""
    with contextlib.suppress(FileNotFoundError):
        _check(path.lstat(), path)


def _check(status: os.stat_result, path: Path) -> None:
    """Raise PermissionError if another user may have put the file there. Any file is accepted in a folder where only
    the owner can write. In other folders, the file must belong to the folder's owner, to root or to this user."""
    if is_descriptor(path) or not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        return
    folder = path.parent.stat()
    if not writable_by_others(folder):
        return
    where = f"in {path.parent}, where others may write"
    if not _is_ours(status) and status.st_uid != folder.st_uid:
        raise _refused(path, f"it was created by {_user(status.st_uid)} {where}")
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise _refused(path, f"it is one of {status.st_nlink} hard links to a file {where}")


def open_regular(path: str, flags: int) -> int:
    """Truncate or create a regular file. For use as an `opener` of `open`. Raises OSError for anything else, including
    links."""
    fd = os.open(path, (flags & ~os.O_TRUNC) | os.O_NONBLOCK | os.O_NOFOLLOW, MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        os.ftruncate(fd, 0)
        return fd
    os.close(fd)
    raise OSError(f"expected a regular file at {path}")


def replace(path: Path, text: str) -> None:
    """Atomically replace the file at `path` with a file that contains `text`. Readers always find a complete file,
    except if the path is a mount point, which cannot be replaced and is overwritten.
    Raises OSError on failure."""
    fresh = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with open(fd, "w") as file:
            file.write(text)
        fresh.replace(path)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if not isinstance(error, OSError) or error.errno != errno.EBUSY:
            raise
        with open(path, "w", opener=open_regular) as file:  # a mount point, such as a container's /dev/termination-log
            file.write(text)


def make_folders(base: Path, *names: str) -> Path:
    """Create the folder `base/name/...` if it does not exist. Any user may own `base`. Folders below it must belong to
    this user or to the owner of `base`, because some file systems assign all files to one user.

    Raises:
        OSError: the folder cannot be created, or something else is in its place.
    """
    folder = followed(base.absolute())
    with contextlib.suppress(FileExistsError):  # it is not a folder; the next `mkdir` raises
        folder.mkdir(parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    for name in names:
        folder = folder / name
        try:
            folder.mkdir(mode=_FOLDER_MODE)
        except FileExistsError:
            folder = _end(folder)
            status = folder.stat()
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
            if not _is_ours(status) and status.st_uid != owner:
                raise _refused(folder, f"it belongs to {_user(status.st_uid)}") from None
    return folder


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link that the kernel follows to resolve the absolute `path`, and finally the target."""
    ahead, here, links = list(reversed(path.parts)), Path("/"), 0
    while ahead:
        name = ahead.pop()
        here = here.parent if name == ".." else here / name
        if is_descriptor(here):
            yield here, here.stat()
            return
        status = here.lstat()
        yield here, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            ahead += reversed(here.readlink().parts)
            here = here.parent


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())


def _is_unknown(uid: int) -> bool:
    """Return whether this id represents all users that are unknown in this container, including the machine's root."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == _ALL_USERS:
            return False
        return uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def _is_private(gid: int, owner: int) -> bool:
    """Return whether the group is the owner's private group, which has the owner's name and no other members."""
    import grp  # imported only if a group may write
    import pwd

    try:
        user, group = pwd.getpwuid(owner), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}


def _user(uid: int) -> str:
    import pwd  # imported only for messages

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _refused(path: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, why, str(path))


def mapped(variable: str, size: int) -> mmap.mmap | bytearray:
    """Map the file whose path is in this environment variable. If there is no such file, or its size is not `size`
    bytes, return a private buffer of zeros, so that workers also run without an agent."""
    with contextlib.suppress(KeyError, OSError, ValueError):
        fd = os.open(os.environ[variable], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_size == size:
                return mmap.mmap(fd, size)
        finally:
            os.close(fd)
    return bytearray(size)


class PageFile:
    """The agent's side of one worker's file, created before the worker starts. Not thread-safe.

    Args:
        path: a file that does not exist yet, in a folder that only this user can access.
        content: the initial content, which determines the size.

    Raises:
        OSError: the file cannot be created. No file is left behind.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self._size = len(content)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate the disk space now: if the disk is full, a write through the mapping kills the worker (SIGBUS).
            os.posix_fallocate(self._fd, 0, self._size)
            os.pwrite(self._fd, content, 0)
        except OSError:
            self.close()
            raise

    def read(self) -> bytes:
        """Return the content, even if the file has been deleted. The result is empty if the worker has truncated the
        file."""
        content = os.pread(self._fd, self._size, 0)
        return content if len(content) == self._size else b""

    def write(self, content: bytes, offset: int) -> None:
        """Overwrite a part of the content."""
        os.pwrite(self._fd, content, offset)

    def close(self) -> None:
        """Remove the file. Later writes by the worker have no effect. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self.path.unlink()
