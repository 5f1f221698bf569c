"""A Python process that has already imported what agents and nodes need, including torch. Processes that it starts are
forks, which pay for no interpreter start and no import. All tests of a session share it; run as a program, this file is
that process.

A fork behaves as if started by its command line, except for what the kernel records at a start: its command line and
the environment in `/proc` are the helper's. It is therefore only for processes whose start is not under test.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module

IMPORTED = ("elastic_core.launch", "elastic_core.operate.commands", "elastic_c10d.create", "elastic_c10d.torch_store")
"""And torch, imported as agents do, so that it prints no warnings. Not gRPC, which does not support forks well."""

FIELD = 12  # the number of characters in a reported number
MOST = 1 << 20  # the maximum size of an order in bytes


class Forked:
    """Implements the part of `subprocess.Popen` that tests use, for a forked process."""

    def __init__(self, args, told, stdin, stdout, stderr):
        self.args = args
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode = None
        self._told = told
        self.pid = self._number()

    def _number(self):
        return int(os.read(self._told, FIELD) or b"-9")

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            ends = select.poll()
            ends.register(self._told)
            if not ends.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def send_signal(self, signum):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Wait until the process has ended. Returns its output since this call."""
        until = None if timeout is None else time.monotonic() + timeout
        said = {}
        readers = [
            threading.Thread(target=lambda pipe=pipe: said.update({pipe: pipe.read()}), daemon=True)
            for pipe in (self.stdout, self.stderr)
            if pipe
        ]
        if self.stdin:
            self.stdin.close()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if until is None else max(0.0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return said.get(self.stdout), said.get(self.stderr)


class WarmPython:
    """The tests' client for the helper process."""

    def __init__(self):
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=null, stdout=null)

    def start(self, words, cwd=None, env=None, stdin=subprocess.DEVNULL, stdout=None, stderr=None):
        """Like `subprocess.Popen([sys.executable, *words], ..., text=True)`, for `-m module ...` and `-c code ...`."""
        order = {"words": words, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
        with contextlib.ExitStack() as ours:
            null = os.open(os.devnull, os.O_RDWR)
            ours.callback(os.close, null)
            ends, pipes = [], []
            for number, wanted in enumerate((stdin, stdout, stderr)):
                pipe = None
                if wanted == subprocess.PIPE:
                    reading, writing = os.pipe()
                    child, mine = (reading, writing) if number == 0 else (writing, reading)
                    ours.callback(os.close, child)
                    pipe = os.fdopen(mine, "r" if number else "w", buffering=1)
                elif wanted == subprocess.DEVNULL:
                    child = null
                else:
                    child = number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
                ends.append(child)
                pipes.append(pipe)
            told, telling = os.pipe()
            ours.callback(os.close, telling)
            socket.send_fds(self._orders, [json.dumps(order).encode()], [*ends, telling])
        return Forked([sys.executable, *words], told, *pipes)

    def close(self):
        self._orders.close()
        self._process.wait(60)


def reads_the_same(environment):
    """Return whether a Python with these variables would start in the same way as this one."""
    names = {name for name in (*os.environ, *environment) if name.startswith("PYTHON")}
    return all(os.environ.get(name) == environment.get(name) for name in names)


# -- in the helper


def serve(orders):
    """Fork for each order until the orders' socket is closed. Returns the order and its descriptors in a child, and
    None in the parent."""
    wake, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    tellings = {}
    while True:
        ready, _, _ = select.select([orders, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            tell_of_ends(tellings)
        if orders in ready:
            data, fds, _, _ = socket.recv_fds(orders, MOST, 4)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                return json.loads(data), fds[:3]
            *ends, telling = fds
            for fd in ends:
                os.close(fd)
            tellings[pid] = telling
            os.write(telling, b"%*d" % (FIELD, pid))


def tell_of_ends(tellings):
    for pid, telling in list(tellings.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(BrokenPipeError):
                os.write(telling, b"%*d" % (FIELD, os.waitstatus_to_exitcode(status)))
            os.close(tellings.pop(pid))


def become(order, fds):
    """Run the order in this process."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    os.closerange(3, 1 << 20)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    kind, what, *arguments = order["words"]
    sys.path[0] = order["cwd"]
    sys.argv = [what if kind == "-m" else "-c", *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        given.set_inheritable(False)
        for name in IMPORTED:
            with contextlib.suppress(ImportError):
                import_module(name)
        with contextlib.suppress(KeyError, ImportError):
            sys.modules["elastic_c10d.torch_store"].distributed()
        ordered = serve(given)
    if ordered:
        become(*ordered)
