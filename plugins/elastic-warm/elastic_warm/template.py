"""The agent's side of the template. A thread learns which modules the workers import, and maintains a template process
that has imported the same modules. The agent itself raises no errors: if a template fails, workers start cold."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Backoff, SystemClock, drop_in_forks, get_logger, later, stop_dropping
from elastic_warm.learned_imports import CachedImports, LearnedImports, from_json
from elastic_warm.program import CHILD_SUBREAPER, GO, command_line, document_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from elastic_core.plugin import Duration, Instant

_QUIET: Duration = 1.0  # seconds without imports by workers after which the template begins to import
_GATHERING: Duration = 0.1  # seconds between two reads of workers' reports, because workers need the CPU
_ANSWER: Duration = 2.0  # seconds for a ready template to fork
_LONGEST_IMPORT: Duration = 600.0  # seconds for one module, at idle priority
_LONGEST_WAIT: Duration = 30.0  # seconds that the first worker waits for a template from a cache
_ENDING: Duration = 5.0  # seconds for a killed template to end
_PAUSES = Backoff(first=1.0, longest=300.0)  # pauses before the next template, after one was lost
_MOST_EDITIONS = 12  # maximum number of consecutive templates that are discarded because of what they have imported
_MOST_REASONS = 8  # maximum number of reasons in one log line
_CHUNK = 64 * 1024
_LARGEST_CACHE = 16 << 20  # bytes
_GET_CHILD_SUBREAPER = 37

VARYING = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
        "ELASTIC_BEAT_FILE",
        "ELASTIC_STOP_FILE",
    }
)
VARYING_HEADS = ("GROUP_", "ROLE_", "TORCHELASTIC_")
_DEFAULTS = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})  # set by the agent to the same value for all workers
# Variables that are read only when a process starts: the template needs the same values as all workers.
_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")


@dataclass(frozen=True)
class Conditions:
    """The properties that all templates of a job share.

    Args:
        python: the interpreter with its options.
        arguments: the workers' `sys.argv`.
        room: see `command_line`.
        exclude: the modules and packages to leave to the workers.
        cache: the cache file.
        memory: the number of bytes that a template may allocate.
    """

    python: tuple[str, ...]
    arguments: tuple[str, ...]
    room: int
    exclude: tuple[str, ...] = ()
    cache: Path | None = None
    memory: int = 0


class _Template:
    """One template process.

    Attributes:
        importing: the module that the template is importing.
        since: when the template began its current import; None if it is idle.
        took: the total duration of all orders in seconds.
        installed: each folder with installed packages, mapped to the time of its last change.
        announced: whether the log has reported the template as ready.
    """

    def __init__(self, conditions: Conditions, environment: Mapping[str, str], varying: frozenset[str]) -> None:
        self.environment = dict(environment)
        self.varying = varying
        self.importing = ""
        self.took: Duration = 0.0
        self.since: Instant | None = None
        self.ready = self.announced = False
        self.installed: dict[str, int] = {}
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.process = subprocess.Popen(
                    command_line(conditions.python, "template", [theirs.fileno()], conditions.room),
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                self.control.close()
                raise
        self.control.setblocking(False)
        self.order(
            b"prepare",
            agent=os.getpid(),
            argv=conditions.arguments,
            memory=conditions.memory,
            excluded=conditions.exclude,
            varying_names=sorted(VARYING | varying),
            varying_heads=VARYING_HEADS,
        )

    @property
    def deadline(self) -> Instant | None:
        """When to give up waiting for a message, or None if no message is expected."""
        return None if self.since is None else later(self.since, _LONGEST_IMPORT)

    def order(self, verb: bytes, **content: object) -> None:
        """Send an order. Raises OSError if the template has exited or cannot receive the order."""
        fd = document_of(content)
        try:
            socket.send_fds(self.control, [verb], [fd])
        finally:
            os.close(fd)

    def end(self) -> str:
        """Kill the template, and return how it ended. It may already have ended on its own."""
        self.process.kill()
        self.control.close()
        try:
            code = self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return "it did not end after SIGKILL"
        if code == -signal.SIGKILL:
            return "it was killed"
        return f"it ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"


class TemplateKeeper:
    """Maintains the template. Call `wait` before each round, `note` before each worker, `fork` for a warm start, and
    `close` at the end."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._learned = LearnedImports()
        self._workers = 1
        self._environment: dict[str, str] | None = None
        self._guessed = False  # whether the environment is that of an earlier run
        self._varying: frozenset[str] = frozenset()
        self._template: _Template | None = None
        self._editions = self._losses = 0
        self._ordered = 0  # how many of the learned modules the template was ordered to import
        self._next: Instant | None = None  # when to update the template
        self._held_until: Instant | None = None  # the template is stopped (SIGSTOP) while workers start cold
        self._pause_until = self._clock.now()  # start no other template before this time
        self._began = self._clock.now()
        self._hurry: Duration = 0.0  # how long the first start may wait for a template from a cache
        self._closing = False
        self._unsaved: tuple[Path, str] | None = None  # the cache file and its content
        self._rest = b""
        self._names, self.report = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._read_cache()
        drop_in_forks(self)
        self._thread = threading.Thread(target=self._keep, name="elastic-template", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The template's process id, or None if there is no template."""
        template = self._template
        return template.process.pid if template else None

    def wait(self) -> None:
        """Before the first worker starts, wait for a template from a cache, for at most 30 s."""
        with self._changed:
            self._changed.wait_for(lambda: not self._hurry or self._closing, self._hurry)
            self._hurry = 0.0

    def note(self, environment: Mapping[str, str], workers: int) -> None:
        """Prepare to start a worker with these environment variables. A template with other variables is discarded.
        `workers` is the number of workers on this node."""
        with self._lock:
            self._workers = workers
            differ = (
                {name for name, value in environment.items() if os.environ.get(name) != value} - _DEFAULTS - VARYING
            )
            at_start: set[str] = set()
            if self._environment is not None and not self._guessed:
                steady = self._steady(environment)
                names = steady.keys() | self._environment.keys()
                changed = {name for name in names if steady.get(name) != self._environment.get(name)}
                at_start = {name for name in changed if name.startswith(_AT_START)}
                differ |= changed
            guessed, self._guessed = self._guessed, False
            self._varying |= {name for name in differ if not name.startswith(_AT_START)}
            self._environment = steady = self._steady(environment)
            template = self._template
            if template and (template.environment != steady or not self._varying <= template.varying):
                if at_start:
                    self._lost(
                        f"{', '.join(sorted(at_start))} differs between workers, but is read when a process starts"
                    )
                else:
                    self._drop()
                    self._soon()
                    if guessed:  # the wrong template may have been ready already
                        self._hurry = self._patience()

    def fork(self, fds: Sequence[int]) -> tuple[int, socket.socket] | None:
        """Fork a worker, and return its process id and a socket whose other end is the worker's `talk`. Returns None if
        the worker must be started cold. `fds` contains the descriptors for `Worker`, with -1 in place of `talk`."""
        with self._changed:
            template = self._template
            if template is None or not template.ready:
                self._hold()
                return None
            if template.installed != _changes(template.installed):
                self._drop()  # a package was installed or removed
                self._soon()
                return None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                ours.settimeout(_ANSWER)
                with theirs, adopting():
                    given = [theirs.fileno() if fd < 0 else fd for fd in fds]
                    socket.send_fds(template.control, [b"fork"], given)
                    theirs.close()
                    pid = int(ours.recv(32))
                ours.send(GO)
                self._losses = 0
                return pid, ours
            except (OSError, ValueError) as error:
                ours.close()
                late = f"did not fork within {_ANSWER:g} s" if isinstance(error, TimeoutError) else "could not fork"
                self._lost(f"it {late}")
                return None

    def _hold(self) -> None:
        """Suspend a template that is still importing until the cold workers have started. Idle priority is not enough,
        because with autogroups, the kernel first distributes CPU time among POSIX sessions."""
        if self._template is not None:
            self._template.process.send_signal(signal.SIGSTOP)
            self._held_until = later(self._clock.now(), _QUIET)
            self._poke()

    def _resume(self) -> None:
        self._held_until = None
        if self._template is not None:
            self._template.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the template and the thread. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._drop()
            self._changed.notify_all()
        self._poke()
        stop_dropping(self)
        self._thread.join(_ENDING)
        if self._thread.is_alive():
            return  # it hangs while writing the cache, and still needs the descriptors
        for fd in (self.report, self._woken, self._wake):
            os.close(fd)

    def drop(self) -> None:
        """Close the template's socket in a forked child."""
        if self._template:
            self._template.control.close()

    def _keep(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - an error here must only disable warm starts
            self._unusable(f"{type(error).__name__}: {error}")
        with self._changed:
            self._hurry = 0.0
            self._drop()
            os.close(self._names)  # makes workers stop reporting
            self._changed.notify_all()

    def _watch(self) -> None:
        resume = self._clock.now()
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                now = self._clock.now()
                with self._lock:
                    template = self._template
                    due = [(template.deadline if template else None) or self._next, self._held_until]
                    if template:
                        selector.register(template.control, selectors.EVENT_READ)
                if now >= resume:
                    selector.register(self._names, selectors.EVENT_READ)
                else:
                    due.append(resume)
                timeout = min((max(0.0, instant - now) for instant in due if instant is not None), default=None)
                ready = {key.fd for key, _ in selector.select(timeout)}
                with contextlib.suppress(KeyError):
                    selector.unregister(self._names)
                if template:
                    with contextlib.suppress(KeyError, ValueError):
                        selector.unregister(template.control)
                if self._names in ready:
                    resume = later(self._clock.now(), _GATHERING)
                with self._changed:
                    self._look(ready)
                    self._changed.notify_all()
                    unsaved, self._unsaved = self._unsaved, None
                if unsaved:
                    _write_cache(*unsaved)  # without the lock, because it may hang

    def _look(self, ready: set[int]) -> None:
        if self._woken in ready:
            os.read(self._woken, _CHUNK)
        if self._names in ready:
            quiet = later(self._clock.now(), _QUIET)
            if self._hear() or self._next is not None:
                self._next = max(quiet, self._pause_until)
            if self._held_until is not None:
                self._held_until = quiet
                if self._template and self._template.since is not None:
                    self._template.since = self._clock.now()
        elif self._held_until is not None and self._clock.now() >= self._held_until:
            self._resume()
        template = self._template
        if template and template.control.fileno() in ready:
            self._follow(template)
        template, now = self._template, self._clock.now()
        if template and template.deadline is not None:
            if now >= template.deadline:
                trying = template.importing or "the ordered modules"
                self._lost(f"it did not finish importing {trying} within {_LONGEST_IMPORT:g} s")
        elif self._next is not None and now >= self._next:
            self._next = None
            self._act()

    def _hear(self) -> bool:
        """Read the workers' reports. Returns whether they contain new modules."""
        *lines, rest = (self._rest + os.read(self._names, _CHUNK)).split(b"\n")
        self._rest = rest[-_CHUNK:]
        heard = [self._learned.hear(line.decode("utf-8", "surrogateescape"), self._workers) for line in lines]
        return any(heard)

    def _follow(self, template: _Template) -> None:
        try:
            message = template.control.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lost("")
            return
        content: dict[str, Any] = json.loads(message)
        if "importing" in content:
            template.importing, template.since = content["importing"], self._clock.now()
        elif "folders" in content:
            template.installed = _changes(content["folders"])
        elif "left" in content:
            self._learned.leave(*content["left"])
        elif "settled" in content:
            template.importing, template.since = "", None
            template.took += self._clock.now() - self._began
            self._settled(template, content["settled"], content["clean"])

    def _settled(self, template: _Template, modules: int, clean: bool) -> None:
        if not clean:
            self._editions += 1
            self._drop()
            if self._editions < _MOST_EDITIONS:
                self._act()
            else:
                reasons = self._why_left().get("reasons", "")
                self._unusable(f"none of {_MOST_EDITIONS} templates was usable for workers: {reasons}")
            return
        self._editions = 0
        self._hurry = 0.0
        self._resume()  # in case the template was suspended just after it had settled
        template.ready = self._ordered == len(self._learned.modules)
        if not template.ready:
            self._act()
            return
        self._learned.seconds = template.took
        log = get_logger().debug if template.announced else get_logger().info
        template.announced = True
        log(
            "template ready",
            pid=template.process.pid,
            modules=modules,
            left=len(self._learned.left),
            **self._why_left(),
        )
        if self._conditions.cache is not None:
            own = self._steady(os.environ)
            added = {name: value for name, value in template.environment.items() if own.get(name) != value}
            text = self._learned.as_json(added, own.keys() - template.environment.keys(), self._varying)
            self._unsaved = self._conditions.cache, text

    def _why_left(self) -> dict[str, str]:
        causes = [f"{name} {why}" for name, why in self._learned.causes.items()]
        more = [f"and {len(causes) - _MOST_REASONS} more"] if len(causes) > _MOST_REASONS else []
        return {"reasons": "; ".join([*causes[:_MOST_REASONS], *more])} if causes else {}

    def _act(self) -> None:
        """Have the template import the modules that were learned. If there is no template, start one first."""
        template, now = self._template, self._clock.now()
        if self._closing or self._editions >= _MOST_EDITIONS:
            return
        if self._environment is None or not self._learned.modules:
            return
        if template and (template.since is not None or self._ordered == len(self._learned.modules)):
            return  # the template is busy or up to date
        try:
            if template is None:
                template = self._template = _Template(self._conditions, self._environment, self._varying)
                self._ordered = 0
            self._began = now
            fresh = self._learned.in_order()
            template.ready = False
            template.since = now
            template.order(b"import", modules=fresh, left=self._learned.left, idle=not self._hurry)
            self._ordered = len(fresh)
        except OSError as error:
            self._lost(f"it could not be started: {error.strerror or error}")

    def _drop(self) -> str:
        template, self._template = self._template, None
        return template.end() if template else ""

    def _lost(self, why: str) -> None:
        template = self._template
        trying = template.importing if template else ""
        how = self._drop()
        if trying:
            self._learned.leave(trying, f"ended the template: {why or how}")
        self._losses += 1
        self._hurry = 0.0
        pause = _PAUSES.pause(self._losses)
        self._next = self._pause_until = later(self._clock.now(), pause)
        self._poke()
        get_logger().warning(
            "template lost",
            reason=why or how,
            **({"module": trying} if trying else {}),
            consequence=f"workers start cold until another template is ready; next attempt in {pause:g} s",
        )

    def _unusable(self, reason: str) -> None:
        self._hurry = 0.0
        get_logger().warning("warm start unavailable", reason=reason, consequence="workers start cold")

    def _soon(self) -> None:
        self._next = max(self._clock.now(), self._pause_until)
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def _steady(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that have the same value for all workers."""
        varying = VARYING | self._varying
        return {
            name: value
            for name, value in environment.items()
            if name not in varying and not name.startswith(VARYING_HEADS)
        }

    def _patience(self) -> Duration:
        """Return how long the first workers may wait for a template."""
        return min(2 * self._learned.seconds + 1, _LONGEST_WAIT)

    def _read_cache(self) -> None:
        cached = read_cache(self._conditions.cache)
        if cached is None:
            return
        self._learned, self._varying = cached.learned, cached.varying
        environment = {**self._steady(os.environ), **cached.environment}
        self._environment = {name: value for name, value in environment.items() if name not in cached.without}
        self._guessed = True
        self._hurry = self._patience()
        self._next = self._clock.now()


def _write_cache(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, new = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
        try:
            with open(fd, "w", encoding="ascii") as file:
                file.write(text)
            Path(new).replace(path)
        except BaseException:
            Path(new).unlink()
            raise
    except OSError as error:
        get_logger().warning(
            "warm start unavailable",
            reason=f"{path} cannot be written: {error.strerror}",
            consequence="the next run starts cold",
        )


def _changes(folders: Iterable[str]) -> dict[str, int]:
    """Return the time of each folder's last change, or 0 for a folder that does not exist or cannot be read."""
    found = dict.fromkeys(folders, 0)
    for folder in found:
        with contextlib.suppress(OSError):
            found[folder] = Path(folder).stat().st_mtime_ns
    return found


def read_cache(path: Path | None) -> CachedImports | None:
    """Return the content of an earlier run's cache file, or None if there is none or it cannot be trusted. A file that
    another user can write to is not trusted, because it could name any module."""
    if path is None:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            writable_by_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.getuid(), 0) or writable_by_others:
                return None
            return from_json(file.read(_LARGEST_CACHE).decode("ascii"))
    except (OSError, ValueError):
        return None


_adopting = threading.Lock()


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Adopt grandchildren whose parent exits while the context is open. This is an attribute of the whole process, so
    only one thread may set it at a time. Raises OSError if the system does not support this."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    with _adopting:
        if libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")
        try:
            yield
        finally:
            libc.prctl(CHILD_SUBREAPER, before.value, 0, 0, 0)


def can_be_warm() -> str:
    """Return why this machine cannot start workers warm, or an empty string if it can."""
    if sys.platform != "linux":
        return f"requires Linux, not {sys.platform}"
    try:
        with adopting():
            os.close(os.pidfd_open(os.getpid()))
            os.close(os.memfd_create("elastic"))
    except (AttributeError, OSError) as error:
        return f"the kernel or this Python lacks a required feature: {error}"
    return ""
