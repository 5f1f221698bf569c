"""Detects modules whose import has effects that workers must not share.

Some modules are *left* to the workers: the template does not import them. A module is left if a worker that is forked
after the import would differ from a worker that imports the module itself. For example, the module may have read a
variable that differs between workers, started a thread, or kept a socket or device open. Modules that import a left
module are also left, because they need its content.

This file uses only the standard library, because it runs in the template (see `program`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import site
import sys
import sysconfig
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_LOADERS: tuple[Any, ...] = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)
_RANDOM = {
    "multiprocessing.synchronize": ("SemLock._make_name",),
    "os": ("urandom", "getrandom"),
    "random": ("_urandom",),
    "tempfile": ("_get_candidate_names",),
    "uuid": ("_generate_time_safe",),
}
"""Functions whose results differ between processes, by module. numpy's generators, `secrets` and `uuid` call these
functions. `Watch._watch_randomness` also handles the generators of `random`."""


def _new_authkey(process: Any) -> None:
    process.current_process().authkey = os.urandom(32)


def _new_dummies(symbol: Any) -> None:
    generator = symbol.Dummy._prng
    generator.seed()
    symbol.Dummy._base_dummy_index = generator.randint(10**6, 9 * 10**6)


def _new_keys(contract: Any) -> None:
    contract.STATE_KEY, contract.REGISTRY_KEY = contract.generate_state_key(), contract.generate_state_key()


def _new_session(hub: Any) -> None:
    hub.SESSION_ID = hub.uuid4().hex


RENEWALS: Mapping[str, Callable[[Any], None]] = {
    "multiprocessing.process": _new_authkey,
    "numpy.random.mtrand": lambda numpy: numpy.seed(),
    "sympy.core.random": lambda random: random.seed(),
    "sympy.core.symbol": _new_dummies,
    "torch.distributed._composable.contract": _new_keys,
    "transformers.utils.hub": _new_session,
}
"""Functions that draw new random values in each worker. The keys are the modules that may draw random values when they
are imported."""
_DRAWS = "draws random values"
_MARK = b"ELASTIC_TEMPLATE"
_HARMLESS = b"jemalloc_bg_thd\n"  # this thread frees memory; jemalloc handles forks, and starts none in a child


class DeferredImport(BaseException):
    """Raised when a module that is left to the workers is imported. It is not an `Exception`, so that code with an
    optional import does not conclude that the module is missing."""


class ProcessState(NamedTuple):
    """State, apart from modules, that an import may change.

    Attributes:
        files: open descriptors and their targets.
        handlers: the kernel's masks of ignored and caught signals.
        output: the number of bytes written.
        generators: the names of global random generators, mapped to their states.
    """

    threads: int
    files: frozenset[tuple[str, str]]
    handlers: tuple[bytes, ...]
    folder: str
    children: bool
    output: int
    generators: Mapping[str, object]


def state_of_process() -> ProcessState:
    """Return the state of this process. Its output must be redirected to files."""
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessState(
        threads=_threads() if int(fields[17]) > 1 else 1,
        files=frozenset(_open_files()),
        handlers=(fields[30], fields[31]),
        folder=working_folder(),
        children=_has_children(),
        output=_written(),
        generators=dict(_generators()),
    )


def working_folder() -> str:
    """Return the current folder, or an empty string if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _threads() -> int:
    """Return how many threads would be missing after a fork. Harmless threads do not count."""
    count = 0
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{name}/comm", "rb") as file:
            count += file.read() != _HARMLESS
    return count


def _open_files() -> Iterator[tuple[str, str]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that is used to list the folder
            yield name, os.readlink(f"/proc/self/fd/{name}")


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _written() -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return sum(os.fstat(fd).st_size for fd in (1, 2))


def _generators() -> Iterator[tuple[str, object]]:
    """Yield the names and states of the global random generators. Workers reseed the generators, but a number that a
    module has drawn during its import would be the same in all workers."""
    if random := _complete("random"):
        yield "random", random.getstate()
    if numpy := _complete("numpy.random"):
        _, numbers, *rest = numpy.get_state()
        yield "numpy", (numbers.tobytes(), *rest)
    if generator := getattr(_complete("torch"), "default_generator", None):
        yield "torch", (generator.initial_seed(), generator.get_state().tolist())


def _complete(name: str) -> Any:
    """Return the module with this name, or None if its import has not completed."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def change(before: ProcessState, after: ProcessState) -> str:
    """Describe an unwanted change that an import has made, or return an empty string. Open files are not considered,
    because the module may still close them."""
    if after.threads > before.threads:
        return "starts a thread"
    if after.handlers != before.handlers:
        return "sets a signal handler"
    if after.folder != before.folder:
        return "changes the working directory"
    if after.children and not before.children:
        return "starts a process"
    if after.output > before.output:
        return "writes to its output"
    for name in sorted(before.generators.keys() & after.generators.keys()):
        if before.generators[name] != after.generators[name]:
            return f"seeds or draws from the global random generator of {name}"
    return ""


class _Name(str):
    """The name of a variable that differs between workers, or a string derived from that name. Such names are given to
    code that iterates over all variables. `on_match` is called if a test of the name succeeds. If no test succeeds, the
    code skips the variable, which is harmless."""

    on_match: Callable[[], None]

    def __new__(cls, text: str, on_match: Callable[[], None]) -> _Name:
        name = super().__new__(cls, text)
        name.on_match = on_match
        return name

    __hash__ = str.__hash__

    def __ne__(self, other: object) -> bool:
        return not self == other

    def encode(self, *how: Any, **more: Any) -> bytes:
        return _EncodedName(super().encode(*how, **more))


class _EncodedName(bytes):
    """A `_Name` as a dictionary key, for code that iterates over variables together with their values."""


def _reporting(method: str) -> Callable[..., Any]:
    own = getattr(str, method)

    def asked(self: _Name, *what: Any) -> Any:
        found = own(self, *what)
        if isinstance(found, str) and method not in _TEXTS:
            return _Name(found, self.on_match)
        if not (found is False or found is NotImplemented or found == -1):
            self.on_match()
        return found

    return asked


_TEXTS = ("__str__", "__format__", "__add__")
_MADE = ("lower", "upper", "casefold", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace")
_ASKED = ("startswith", "endswith", "find", "index", "split", "rsplit", "partition", "rpartition")
for _method in (*_TEXTS, *_MADE, "__getitem__", *_ASKED, "__eq__", "__contains__"):
    setattr(_Name, _method, _reporting(_method))


class _WatchedVariables(dict[bytes, bytes]):
    """The dictionary behind `os.environ` and `os.environb`, which reports each name that is read. Iteration also yields
    the `varying` names, whose values appear to be empty."""

    def __init__(self, plain: dict[bytes, bytes], read: Callable[[bytes], None], varying: Iterable[str]) -> None:
        super().__init__(plain)
        self._read = read
        self._varying = tuple(_EncodedName(os.fsencode(name)) for name in varying)

    def __iter__(self) -> Iterator[bytes]:
        yield from super().__iter__()
        yield from self._varying

    def __getitem__(self, name: bytes) -> bytes:
        if isinstance(name, _EncodedName):
            return b""
        self._read(name)
        return super().__getitem__(name)

    def __setitem__(self, name: bytes, value: bytes) -> None:
        if not isinstance(name, _EncodedName):
            super().__setitem__(name, value)


class Watch:
    """Watches the imports of this process from `begin` to `end`.

    Args:
        varies: returns whether a variable differs between workers.
        installed: returns whether a file belongs to an installation (see `installation`).
        on_left: called once for each left module, with its name and the reason.
        varying: names of variables that differ between workers and are not set in this process.
    """

    def __init__(
        self,
        varies: Callable[[str], bool],
        installed: Callable[[str], bool],
        on_left: Callable[[str, str], None],
        varying: Iterable[str] = (),
    ) -> None:
        self._varies = varies
        self._installed = installed
        self._on_left = on_left
        self._varying = tuple(varying)
        self._left: dict[str, str] = {}
        self._excluded: tuple[str, ...] = ()
        self._origins: dict[str, str] = {}
        self._sought: dict[str, tuple[str, ...]] = {}  # modules without a file, and their importers
        self._missed: dict[str, tuple[str, ...]] = {}
        self._running: list[str] = []
        self._state: ProcessState | None = None
        self._opened: dict[tuple[str, str], str] = {}  # files, and the modules that opened them
        self._undo: list[Callable[[], None]] = []
        self._drawn_from: list[Any] = []
        self._mark = "".join(["of", " the template"])  # the value of a marker variable, to detect copies
        self._holders = sys.getrefcount(self._mark)
        self._all_read = False
        self._before = frozenset(sys.modules)
        self.clean = True

    def exclude(self, names: Sequence[str]) -> None:
        """Leave these modules and packages to the workers."""
        self._excluded = tuple(names)

    def expect(self, origins: Mapping[str, str], left: Mapping[str, str]) -> None:
        """Set which modules the workers have imported, and which modules are left to the workers. `origins` maps the
        former to their files (an empty string if there is no file). `left` maps the latter to the reasons."""
        self._origins.update(origins)
        self._left.update(left)
        self._leave_modules_that_missed(origins.keys() & self._missed.keys() - sys.modules.keys())
        for name in left.keys() & sys.modules.keys() - self._before:
            self.clean = False  # the module was already imported here
            self._on_left(name, left[name])
        for name in origins.keys() & self._before:
            here = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
            if here and origins[name] and origins[name] != here:
                self.clean = False  # this program has imported the module from a different file than the workers
                self._on_left(name, f"is imported from another file by the workers: {origins[name]}")

    def begin(self) -> None:
        for loader in _LOADERS:
            self._replace(loader, "exec_module")
        self._replace(importlib.machinery.ExtensionFileLoader, "create_module")
        self._watch_finder()
        self._watch_variables()
        for name in _RANDOM:
            self._watch_randomness(name)

    def end(self) -> None:
        """Undo all changes that the watch has made. Called in a worker."""
        while self._undo:
            self._undo.pop()()

    def run(self, load: Callable[[], object]) -> None:
        """Run one import. Errors are raised, except for `DeferredImport`."""
        self._state = state_of_process()
        with contextlib.suppress(DeferredImport):
            try:
                load()
            finally:
                self._look_for_missed()

    @contextlib.contextmanager
    def _executing(self, name: str, origin: str) -> Iterator[None]:
        if why := self._unwanted(name, origin):
            self._refuse(name, why)
        self._compare()
        self._running.append(name)
        try:
            yield
        finally:
            self._renew(name)
            self._compare()
            self._held_open(name)
            self._running.pop()
        self._watch_randomness(name)

    def _refuse(self, name: str, why: str) -> None:
        for importer in reversed(self._running):
            self.leave(importer, f"imports {name}")
        if name not in self._left and self._running:
            self.leave(name, why)
        raise DeferredImport(name)

    def _unwanted(self, name: str, origin: str) -> str:
        if name in self._left:
            return self._left[name]
        if any(name == one or name.startswith(f"{one}.") for one in self._excluded):
            return "is excluded by --warm-start-exclude"
        if not self._installed(origin):
            return f"is in {origin}, which is not part of an installation"
        if self._origins.get(name) not in (None, "", origin):
            return f"is imported from another file by the workers: {self._origins[name]}"
        return ""

    def _look_for_missed(self) -> None:
        """Record the modules that the finder did not find. Modules that another finder has found are not recorded."""
        missed = {name: importers for name, importers in self._sought.items() if name not in sys.modules}
        self._sought.clear()
        self._missed.update(missed)
        self._leave_modules_that_missed(missed.keys() & (self._origins.keys() | self._left.keys()))

    def _leave_modules_that_missed(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            for module in reversed(self._missed.pop(name)):
                self.leave(module, f"looks for {name}, which only the workers can find")

    def _read(self, variable: bytes) -> None:
        if variable == _MARK:
            self._all_read = True
        elif self._running and self._varies(name := os.fsdecode(variable)):
            self.leave(self._running[-1], f"reads {name}")

    def _keeps_copy(self) -> bool:
        """Return whether a copy of all variables has been made since the last call and still exists. Code that only
        iterates over the variables, for example to find a prefix, is harmless."""
        if not self._all_read:
            return False
        self._all_read = False
        before, self._holders = self._holders, sys.getrefcount(self._mark)
        return self._holders > before

    def _compare(self) -> None:
        """Attribute any change of the process's state to the module that is running. If several are running, it is the
        innermost one."""
        before, after = self._state, state_of_process()
        if before and after.threads > before.threads:
            _try_fork()  # pools that stop their threads before a fork, such as OpenBLAS's, are harmless
            after = state_of_process()
        if before and self._running:
            self._opened.update(dict.fromkeys(after.files - before.files, self._running[-1]))
            if what := change(before, after):
                self.leave(self._running[-1], what)
        if self._keeps_copy() and self._running:
            self.leave(self._running[-1], "keeps a copy of all variables")
        self._state = after

    def _held_open(self, name: str) -> None:
        """Leave the module to the workers if files that it has opened are still open at the end of its import."""
        for file in [file for file, module in self._opened.items() if module == name]:
            del self._opened[file]
            if self._state and file in self._state.files:
                self.leave(name, f"holds {file[1].partition(':[')[0]} open")

    def leave(self, name: str, why: str) -> None:
        """Leave this module to the workers, and also the modules that are importing it."""
        self.clean = False
        if name not in self._left:
            self._left[name] = why
            self._on_left(name, why)
            for importer in reversed(self._running[: self._running.index(name)] if name in self._running else ()):
                self.leave(importer, f"imports {name}")

    def _replace(self, loader: Any, method: str) -> None:
        own, original = vars(loader).get(method), getattr(loader, method)
        watch = self

        def watched(self: Any, what: Any) -> Any:
            spec = getattr(what, "__spec__", None) or what
            with watch._executing(spec.name, spec.origin or ""):
                return original(self, what)

        setattr(loader, method, watched)
        self._undo.append(lambda: setattr(loader, method, own) if own else delattr(loader, method))

    def _watch_finder(self) -> None:
        finder: Any = importlib.machinery.PathFinder
        own = vars(finder)["find_spec"]

        def watched(name: str, path: Any = None, target: Any = None) -> Any:
            spec = own.__func__(finder, name, path, target)
            if spec is None:
                self._sought[name] = tuple(self._running)
            elif spec.origin and not isinstance(spec.loader, _LOADERS):
                self._refuse(name, f"is loaded by {type(spec.loader).__name__}")
            return spec

        finder.find_spec = staticmethod(watched)
        self._undo.append(lambda: setattr(finder, "find_spec", own))

    def _watch_randomness(self, name: str) -> None:
        """Watch for draws of random values from the module `name`. A module that draws such values during its import is
        left to the workers."""
        module: Any = sys.modules.get(name)
        if module is None or name not in _RANDOM or module in self._drawn_from:
            return
        self._drawn_from.append(module)
        for function in _RANDOM[name]:
            self._watch_draws(module, function)
        if name == "random":
            original = module.Random.seed

            @functools.wraps(original)
            def seed(generator: Any, *arguments: Any, **named: Any) -> Any:
                if named.get("a", arguments[0] if arguments else None) is None and not _tries_folders(sys._getframe(2)):
                    self._draws()
                return original(generator, *arguments, **named)

            self._exchange(module.Random, "seed", seed)

    def _watch_draws(self, owner: Any, path: str) -> None:
        *classes, name = path.split(".")
        for one in classes:
            owner = getattr(owner, one, None)
        original = getattr(owner, name, None)
        if original is None:
            return

        def watched(*arguments: Any, **named: Any) -> Any:
            self._draws()
            return original(*arguments, **named)

        # As an attribute of a class, the replacement must not become a method, because the original does not.
        self._exchange(owner, name, staticmethod(watched) if classes else functools.partial(watched))

    def _exchange(self, owner: Any, name: str, other: object) -> None:
        original = vars(owner)[name]
        setattr(owner, name, other)
        self._undo.append(lambda: setattr(owner, name, original))

    def _draws(self) -> None:
        if self._running and self._running[-1] not in RENEWALS:
            self.leave(self._running[-1], _DRAWS)

    def _renew(self, name: str) -> None:
        """Call the module's renewal function, if it has one. If the function raises an error, leave the module to the
        workers. The module may have another version than expected."""
        if name in RENEWALS and (module := sys.modules.get(name)):
            try:
                RENEWALS[name](module)
            except Exception:  # noqa: BLE001 - it is another module's code
                self.leave(name, _DRAWS)

    def _watch_variables(self) -> None:
        watched = [environ for environ in (os.environ, os.environb) if hasattr(environ, "_data")]
        if not watched:
            return
        plain: dict[bytes, bytes] = watched[0]._data
        data = _WatchedVariables({**plain, _MARK: _MARK}, self._read, self._varying)
        decode_name, decode = os.environ.decodekey, os.environ.decodevalue

        def named(name: Any) -> str:
            text = decode_name(name)
            return _Name(text, functools.partial(self._read, bytes(name))) if isinstance(name, _EncodedName) else text

        def marked(value: Any) -> str:
            return self._mark if value == _MARK else decode(value)

        os.environ.decodekey, os.environ.decodevalue = named, marked
        for environ in watched:
            environ._data = data

        def undo() -> None:
            os.environ.decodekey, os.environ.decodevalue = decode_name, decode
            data.pop(_MARK, None)
            for environ in watched:
                environ._data = {name: data[name] for name in dict.keys(data)}

        self._undo.append(undo)


def _tries_folders(frame: Any) -> bool:
    """Return whether `tempfile` is creating a random generator in order to search for a usable folder."""
    caller = frame.f_back.f_back.f_code
    return frame.f_globals.get("__name__") == "tempfile" and str(caller.co_name) == "_get_default_tempdir"


def _try_fork() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def installation_folders() -> list[str]:
    """Return the folders of this Python's standard library and installed packages."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update((*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.__file__)))
    return sorted(map(os.path.realpath, folders))


def installation() -> Callable[[str], bool]:
    """Return a function that tests whether a file belongs to this Python's installation. Other files may be edited
    between rounds."""
    roots = tuple(f"{folder}{os.sep}" for folder in installation_folders())

    @functools.cache
    def within(folder: str) -> bool:
        return f"{os.path.realpath(folder)}{os.sep}".startswith(roots)

    return lambda origin: within(os.path.dirname(origin)) if os.sep in origin else True
