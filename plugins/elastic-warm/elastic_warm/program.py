"""The program that runs in the template process, and in a worker until the user's code starts.

The template imports modules on request and forks workers. It imports them in its main thread, because some modules
require this. Imports run at idle priority, but only if the kernel lets the template raise its priority again
afterwards. The template is single-threaded when it forks.

A worker must be a child of the agent. An intermediate process therefore forks the worker and exits, and the agent
adopts the worker (`template.adopting`).

This file uses only the standard library. The agent starts the program with `command_line`, and then sends messages to
the template. Each message consists of a verb and descriptors. The first descriptor refers to a JSON document
(`document_of`).
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import types
from typing import TYPE_CHECKING, Any

from elastic_warm.unsafe_imports import RENEWALS, Watch, installation, installation_folders, working_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36  # for prctl
GO = b"go"
MOST_DESCRIPTORS = 250  # descriptors in one message; the kernel's limit is 253
_HERE = os.path.dirname(os.path.abspath(__file__))
# The standard library must be found in the same way as for a script: not in the folder that `-c` puts first, and not
# after the folder of our packages, which also contains other packages. This package's path therefore contains only its
# own files.
_START = f"""
import sys
sys.path[:] = filter(None, sys.path)
first = frozenset(sys.modules)
sys.modules["elastic_warm"] = package = type(sys)("elastic_warm")
package.__path__ = [{_HERE!r}]
from elastic_warm.program import main
main(first)
"""
_FREQUENT = frozenset(
    {"builtins.id", "sys._getframe", "object.__getattr__", "object.__setattr__"}
)  # these events import nothing
_REST = 0.1  # seconds to wait after the pipe was full
_LONGEST = 400  # characters of a reason


def command_line(python: Sequence[str], role: str, descriptors: Sequence[int], room: int) -> list[str]:
    """Return the command that runs this file as `template` or `worker`. `room` is the number of bytes to reserve for
    the worker's own command line, which later replaces this one in the process list."""
    line = [*python, "-c", _START, role, *map(str, descriptors)]
    return [*line, " " * max(1, room - sum(len(os.fsencode(word)) + 1 for word in line))]


def document_of(content: Mapping[str, object]) -> int:
    """Write the content as JSON to an in-memory file, and return the file's descriptor."""
    fd = os.memfd_create("elastic-order")
    with open(fd, "w", encoding="ascii", closefd=False) as file:
        json.dump(content, file)  # undecodable bytes in names are escaped, and restored when the document is read
    return fd


def _read(fd: int) -> Any:
    with open(fd, encoding="ascii") as file:
        file.seek(0)
        return json.load(file)


def main(first: frozenset[str]) -> None:
    """Run the program, and exit in the same way as the user's code. `first` contains the names of the modules that the
    interpreter had loaded when it started."""
    role, *descriptors = sys.argv[1:-1]
    for name in [name for name in sys.modules if name.partition(".")[0] == "elastic_warm"]:
        del sys.modules[name]  # a program that imports it gets a fresh copy
    _interpreter.ours = frozenset(sys.modules) - first
    _interpreter.main = sys.modules["__main__"]
    sys.addaudithook(_audit)
    control, *rest = map(int, descriptors)
    worker = Worker(control, rest) if role == "worker" else Template(socket.socket(fileno=control)).serve()
    code = worker.run() if worker is not None else 0
    if code and getattr(sys, "last_type", None) is KeyboardInterrupt:
        return  # the interpreter ends itself with the signal
    sys.exit(code)


class _Interpreter:
    """Global state of the process.

    Attributes:
        main: the original `__main__` module, to which the interpreter still refers.
        ours: the names of the modules that this program has imported for itself.
        listener: receives audit events in workers.
    """

    main: types.ModuleType
    ours: frozenset[str] = frozenset()
    listener: _Report | None = None


_interpreter = _Interpreter()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _FREQUENT and _interpreter.listener is not None:
        _interpreter.listener(event, arguments)


class Template:
    """Executes orders from `control`, one at a time, until the agent closes it."""

    def __init__(self, control: socket.socket) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the agent may have been started with the signal ignored
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._control = control
        self._gc = gc.isenabled()
        self._environment = dict(os.environ)
        self._normal = os.sched_getscheduler(0), os.sched_getparam(0)
        self._idle = _may_leave_idle(*self._normal)
        self._limit = resource.getrlimit(resource.RLIMIT_DATA)
        self._ready = False

    def serve(self) -> Worker | None:
        """Execute orders until the agent has exited. Returns a Worker in a forked worker, and None in the template."""
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, 64, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            if message == b"prepare":
                self._prepare(_read(fds[0]))
            elif message == b"import":
                self._import(_read(fds[0]))
            elif message == b"fork":
                if (worker := self._fork(fds)) is not None:
                    return worker
            else:
                return None

    def _prepare(self, order: Any) -> None:
        if os.getppid() != order["agent"]:
            sys.exit()  # the agent died before the parent-death signal was set
        self._say(folders=installation_folders())
        for fd in (1, 2):  # capture the output of modules
            output = os.memfd_create("elastic-output")
            os.dup2(output, fd)
            os.close(output)
        hard = self._limit[1]
        data = order["memory"] if hard == resource.RLIM_INFINITY else min(order["memory"], hard)
        resource.setrlimit(resource.RLIMIT_DATA, (data, hard))
        sys.argv[:] = order["argv"]
        _show(["elastic:", "template", "of", order["argv"][0]])
        _new_main(order["argv"][0])
        heads, names = tuple(order["varying_heads"]), frozenset(order["varying_names"])
        self._watch = Watch(lambda name: name in names or name.startswith(heads), installation(), self._left, names)
        self._watch.exclude(order["excluded"])
        self._watch.begin()

    def _left(self, name: str, why: str) -> None:
        self._say(left=[name, why[:_LONGEST]])

    def _say(self, **what: object) -> None:
        self._control.send(json.dumps(what).encode())

    def _import(self, order: Any) -> None:
        self._ready = False
        self._watch.expect(dict(order["modules"]), order["left"])
        if self._idle and order["idle"]:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        gc.disable()
        for name, _ in order["modules"] if self._watch.clean else ():
            if name not in sys.modules and name not in order["left"]:
                self._say(importing=name)
                self._import_one(name)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page
        os.sched_setscheduler(0, *self._normal)
        self._ready = self._watch.clean
        self._say(settled=len(sys.modules), clean=self._watch.clean)

    def _import_one(self, name: str) -> None:
        try:
            self._watch.run(lambda: importlib.import_module(name))
        except ModuleNotFoundError as error:
            if not error.name or not f"{name}.".startswith(f"{error.name}."):
                self._watch.leave(name, f"needs {error.name}, which is not found here")
        except BaseException as error:  # noqa: BLE001 - whatever a module raises when it is imported
            self._watch.leave(name, f"raises {type(error).__name__}: {error}")

    def _fork(self, fds: list[int]) -> Worker | None:
        """Fork a worker. Returns None in the template, after closing the descriptors. If forking fails, the agent
        notices that the other end of `talk` is closed."""
        between = os.fork() if self._ready else -1
        if between:
            for fd in fds:
                os.close(fd)
            if between > 0:
                os.waitpid(between, 0)
            return None
        me = os.getpid()
        try:
            worker = os.fork()
        except OSError:
            worker = -1
        if worker:
            os._exit(0)
        self._control.close()
        self._watch.end()
        resource.setrlimit(resource.RLIMIT_DATA, self._limit)
        now = dict(os.environ)
        changed = {name: value for name, value in now.items() if self._environment.get(name) != value}
        made = Worker(fds[0], fds[1:])
        made.present(changed, self._environment.keys() - now.keys(), me)
        if self._gc:
            gc.enable()
        return made


def _may_leave_idle(policy: int, parameters: os.sched_param) -> bool:
    """Return whether the kernel lets this process restore its priority. If not, the priority must not be lowered."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, policy, parameters)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _wait_for_exit(parent: int) -> None:
    """Wait until the intermediate process has exited, so that the agent is the worker's parent."""
    with contextlib.suppress(ProcessLookupError):
        waiter = select.poll()
        waiter.register(ended := os.pidfd_open(parent), select.POLLIN)
        waiter.poll()
        os.close(ended)


def _new_main(script: str) -> types.ModuleType:
    """Create a main module in the same way as Python. Modules may access the main module when they are imported."""
    module = types.ModuleType("__main__")
    first = vars(_interpreter.main)
    vars(module).update({name: value for name, value in first.items() if name.startswith("__")})
    if "__annotations__" in first:
        module.__annotations__ = {}
    if script not in ("-c", "-m"):
        module.__file__ = script
    sys.modules["__main__"] = module
    return module


class Worker:
    """Turns this process into a worker.

    Args:
        order: the descriptor of the document that specifies what to run.
        fds: the descriptors named in the order.
    """

    def __init__(self, order: int, fds: list[int]) -> None:
        self._order = _read(order)
        self._fds: dict[str, int] = dict(zip(self._order["descriptors"], fds, strict=True))

    def run(self) -> int:
        """Run the user's code, and return the exit code. The code may also end the process itself."""
        if "function" not in self._fds:
            os.close(self._fds.pop("talk"))
        for name, fd in self._fds.items():
            os.set_inheritable(fd, name == "mark")
        if "report" in self._fds:
            _interpreter.listener = listener = _Report(self._fds["report"], self._order["local_rank"])
            os.register_at_fork(after_in_child=listener.stop)
        command, arguments = self._order["command"], self._order["arguments"]
        sys.orig_argv[:] = command
        _show(command)
        if "function" in self._fds:
            return _run_function(self._fds)
        sys.argv[:] = arguments
        _new_main(arguments[0])
        if arguments[0] == "-m":
            return _run_module(self._order["code"])
        return _run_code(self._order["code"]) if arguments[0] == "-c" else _run_script(arguments[0])

    def present(self, changed: Mapping[str, str], removed: Collection[str], between: int) -> None:
        """Turn this copy of the template into a worker, notify the agent, and wait for its answer. On failure, exit,
        and the agent starts another worker. `changed` and `removed` are the environment variables that imports in the
        template have set and removed. `between` is the intermediate process that forked this one."""
        environment = {**self._order["environment"], **changed}
        with socket.socket(fileno=os.dup(self._fds["talk"])) as talk:
            try:
                self._become({name: value for name, value in environment.items() if name not in removed})
                _wait_for_exit(between)
                talk.send(str(os.getpid()).encode())
                begins = talk.recv(len(GO)) == GO
            except BaseException:  # noqa: BLE001 - no user code has run yet
                begins = False
        if not begins:
            os._exit(0)

    def _become(self, environment: Mapping[str, str]) -> None:
        """Make this copy of the template look like a process that Python has just started."""
        os.setsid()
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(given := self._fds.pop(name), fd)
            os.close(given)
        if not os.path.exists(f"/proc/self/fd/{self._order['mark']}"):  # cold workers have the mark at this number
            os.dup2(given := self._fds["mark"], self._order["mark"])
            os.close(given)
            self._fds["mark"] = self._order["mark"]
        if self._order["folder"] not in ("", working_folder()):
            os.chdir(self._order["folder"])
        os.environ.clear()
        os.environ.update(environment)
        if self._order["cpus"]:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._order["cpus"])
        if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.write_through:
            sys.stdout.reconfigure(line_buffering=os.isatty(1))
        if os.environ.get("PYTHONFAULTHANDLER"):
            importlib.import_module("faulthandler").enable()
        importlib.invalidate_caches()
        _reseed()


def _reseed() -> None:
    """Reseed random generators. Python reseeds `random` itself. torch's device generators start from the same seed in
    every process anyway."""
    if generator := getattr(sys.modules.get("torch"), "default_generator", None):
        generator.seed()
    for name, renew in RENEWALS.items():
        if module := sys.modules.get(name):
            renew(module)


class _Report:
    """Reports imported modules over a pipe. Each report contains the module, its file, and its position in the order of
    imports. Position 0 means that the import has failed. If the pipe is full, the report is sent later.

    Some ways to import a module raise no audit event, so every event triggers a check for new modules.
    """

    def __init__(self, fd: int, local_rank: int) -> None:
        self._fd = fd
        self._local_rank = local_rank
        self._seen = set(sys.modules)
        self._count = self._place = len(sys.modules)
        self._unsent: dict[str, int] = {}
        self._begun: list[str] = []
        self._pipe = _identity(fd)
        self._lock = _thread.allocate_lock()
        self._again = 0.0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if len(sys.modules) == self._count and not self._unsent and not self._begun:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._look()
                if self._unsent and (not self._again or time.monotonic() >= self._again):
                    self._again = 0.0
                    self._send()
            except BlockingIOError:
                self._again = time.monotonic() + _REST
            except Exception:  # noqa: BLE001 - the reader has ended
                self.stop()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Stop reporting. Also called in forked children of the worker."""
        if _interpreter.listener is self:
            _interpreter.listener = None
            if _identity(self._fd) == self._pipe:  # otherwise, user code has closed the pipe, and its number was reused
                os.close(self._fd)

    def forget(self, names: Sequence[str]) -> None:
        self._seen.difference_update(names)
        self._count = len(sys.modules)

    def _look(self) -> None:
        while self._begun and not getattr(spec := _spec(self._begun[-1]), "_initializing", False):
            name = self._begun.pop()
            if spec is None:
                self._unsent[name] = 0
        if len(sys.modules) == self._count:
            return
        names = list(sys.modules)
        missing, self._count = len(names) - self._count, len(names)
        fresh: list[str] = []
        for name in reversed(names):  # after its import, a module moves behind those whose imports started later
            if name not in self._seen:
                fresh.append(name)
            elif len(fresh) >= missing:
                break
        self._seen.update(fresh)
        for name in reversed(fresh):
            if _spec(name) is not None:
                self._place += 1
                self._unsent[name] = self._place
                self._begun.append(name)

    def _send(self) -> None:
        while self._unsent:
            lines, sent = b"", []
            for name, place in self._unsent.items():
                spec = _spec(name)
                origin = spec.origin if spec and spec.has_location else ""
                line = f"{self._local_rank}\t{place}\t{name}\t{origin}\n".encode("utf-8", "surrogateescape")
                if lines and len(lines) + len(line) > select.PIPE_BUF:
                    break
                lines += line
                sent.append(name)
            if _identity(self._fd) != self._pipe:
                raise BrokenPipeError
            os.write(self._fd, lines)
            for name in sent:
                del self._unsent[name]


def _identity(fd: int) -> tuple[int, int]:
    try:
        found = os.fstat(fd)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _spec(name: str) -> Any:
    """Return a module's spec without running the module's code. Returns None if the module was removed or has another
    name."""
    try:
        spec = object.__getattribute__(sys.modules[name], "__dict__").get("__spec__")
        return spec if spec.name == name else None
    except (AttributeError, KeyError):
        return None


def _show(command: Sequence[str]) -> None:
    """Replace this process's command line in the process list with the user's command. The last byte of the memory area
    is set to a nonzero value, so that the kernel shows the text up to the first zero byte."""
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    start, end = map(int, stat[stat.rindex(b")") + 2 :].split()[45:47])
    if 0 < start < end:
        text = b" ".join(map(os.fsencode, command))[: end - start - 2]
        ctypes.memmove(start, text.ljust(end - start - 1, b"\0") + b".", end - start)


def _run_script(given: str) -> int:
    path = os.path.join("" if os.path.isabs(given) else os.getcwd(), given.removeprefix("./"))
    if os.path.isdir(path) or not path.endswith(".py"):
        importer = importlib.import_module("pkgutil").get_importer(path)
        if importer is not None:
            sys.path.insert(0, path)
            _make_way(path)
            return _run_module("__main__", alter_argv=False)
    _put_first(os.path.dirname(os.path.realpath(path)))
    del sys.modules["__main__"].__file__
    libc, python = ctypes.CDLL(None, use_errno=True), ctypes.pythonapi
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:
        error = ctypes.get_errno()
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error}] {os.strerror(error)}\n")
        return 2
    python.PyRun_AnyFileExFlags.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
    return 1 if python.PyRun_AnyFileExFlags(file, os.fsencode(path), 1, None) else 0


def _run_code(code: str) -> int:
    _put_first("")
    ctypes.pythonapi.PyRun_SimpleString.argtypes = (ctypes.c_char_p,)
    return 1 if ctypes.pythonapi.PyRun_SimpleString(code.encode("utf-8", "surrogateescape")) else 0


def _run_module(name: str, alter_argv: bool = True) -> int:
    if alter_argv:
        _put_first(os.getcwd())
    runpy: Any = importlib.import_module("runpy")
    try:
        runpy._run_module_as_main(name, alter_argv)
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__.tb_next if error.__traceback__ else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None
            raise  # the interpreter ends itself with the signal, without printing the error again
        return 1
    return 0


def _put_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path.insert(0, folder)
        _make_way(folder)


def _make_way(folder: str) -> None:
    """Remove modules that this program has imported if the folder contains modules with the same names. The user's code
    then imports the modules in the folder."""
    find = importlib.machinery.PathFinder.find_spec
    for name in _interpreter.ours - {"__main__"}:
        if "." not in name and (spec := find(name, [folder])) and spec.loader is not None:
            names = [one for one in sys.modules if f"{one}.".startswith(f"{name}.")]
            for one in names:
                del sys.modules[one]
            if _interpreter.listener is not None:
                _interpreter.listener.forget(names)


def _run_function(fds: Mapping[str, int]) -> int:
    """Run the function in the same way as a spawned `multiprocessing` process."""
    _new_main("-c")
    spawn: Any = importlib.import_module("multiprocessing.spawn")
    tracker: Any = importlib.import_module("multiprocessing.resource_tracker")
    tracker._resource_tracker._fd = fds["tracker"]
    shared = [fd for name, fd in fds.items() if name.startswith("shared")]
    if shared:
        importlib.import_module("multiprocessing.forkserver")._forkserver._inherited_fds = shared
    os.lseek(fds["function"], 0, os.SEEK_SET)
    exitcode: int = spawn._main(fds["function"], fds["talk"])
    return exitcode
