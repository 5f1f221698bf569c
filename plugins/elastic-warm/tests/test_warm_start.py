"""Warm start under the real command: warm workers of the second round must equal cold ones."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from elastic_testing import eventually
from elastic_warm.template import adopting

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="warm start is for Linux"),
]

# The first round waits for the template and then fails. {second} is the second round's code.
SCRIPT = """
import os, sys, time
import colorsys, decimal  # the template imports these as well
{imports}
THERE = set(sys.modules)

def first_round():
    end = time.monotonic() + 60
    while not os.path.exists("warm"):
        assert time.monotonic() < end, "no template"
        time.sleep(0.01)
    os._exit(9)

if __name__ == "__main__":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        first_round()
    {second}
"""


class WarmRuns:
    """Runs a script for two rounds, the second of which is warm."""

    def __init__(self, elastic):
        elastic.through = ["env"]  # a separate interpreter
        self.elastic = elastic
        self.folder = elastic.cwd
        self.site = self.folder / f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        self.site.mkdir(parents=True)
        self.names = iter(range(100))

    def script(self, second, imports="", name="train.py"):
        code = SCRIPT.replace("{imports}", imports).replace("{second}", second.strip().replace("\n", "\n    "))
        return self.elastic.script(name, code)

    def start(self, *words, cold=False, workers=1, restarts=1, program="", meets="--standalone", **environment):
        """Start; returns the process and the path of its log."""
        name = f"agent{next(self.names)}"
        (self.folder / "warm").unlink(missing_ok=True)
        flags = [meets, f"--nproc-per-node={workers}", f"--max-restarts={restarts}"]
        flags += [] if cold else ["--warm-start"]
        environment = {"PYTHONUSERBASE": str(self.folder / "user"), "PYTHONPATH": str(self.site), **environment}
        command = [program, "run"] if program else ["run"]
        process = self.elastic.start_to_files(name, *command, *flags, *words, **environment)
        return process, self.folder / f"{name}.err"

    def until(self, log, words, process=None):
        eventually(lambda: re.search(words, log.read_text()) or (process and process.poll() is not None), timeout=60)
        assert re.search(words, log.read_text()), log.read_text()

    def second_begins(self):
        (self.folder / "warm").touch()

    def run(self, *words, cold=False, ready="template ready", cached=(), **more):
        """Run to the end; returns the exit code, the output, and the log. The second round begins when the template is
        ready, and when the cache contains the modules in `cached`. If a worker's imports are slow, the template becomes
        ready before the last of them."""
        process, log = self.start(*words, cold=cold, **more)
        if not cold:
            self.until(log, ready, process)
        if cached:
            eventually(lambda: any(set(cached) <= it for it in self.cached()) or process.poll() is not None, timeout=60)
        self.second_begins()
        code = process.wait(60)
        return code, log.with_suffix(".out").read_text(), log.read_text()

    def cached(self):
        """The names of the modules in each cache file."""
        folder = self.folder / "cache"
        files = cache_files(folder) if folder.exists() else []
        return [set(json.loads(file.read_text())["modules"]) for file in files]


@pytest.fixture
def warm_runs(elastic):
    return WarmRuns(elastic)


STATE = """
import ctypes, faulthandler, gc, json, locale, random, resource, signal, threading
def prctl(what):
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(what, ctypes.byref(value), 0, 0, 0)
    return value.value
def stream(it):
    how = [it.encoding, it.errors, it.line_buffering, it.write_through, it.mode]
    return [*how, it.name, it.isatty(), str(type(it.buffer))]
def of_kernel(*names):
    with open("/proc/self/status") as file:
        return [line.split()[:2] for line in file if line.startswith(names)]
def files():
    for name in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{name}").split(":[")[0]
            yield what[-4:] if "agent" in what else what, os.get_inheritable(int(name))
        except OSError:
            pass
def plain(value):
    return value if isinstance(value, (str, dict, type(None))) else str(type(value))
main = {name: plain(value) for name, value in vars(sys.modules["__main__"]).items() if name.startswith("__")}
main["__builtins__"] = ""
spec = sys.modules["__main__"].__spec__
state = {
    "main": main, "spec": spec and [spec.name, spec.origin, spec.parent],
    "argv": [sys.argv, sys.orig_argv], "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
    "streams": [stream(it) for it in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.excepthook is sys.__excepthook__],
    "files": sorted(files()), "finders": [str(it).split(" at ")[0] for it in sys.meta_path],
    "variables": [[name, value] for name, value in os.environ.items() if name not in CHANGE],
    "of C": sorted(line for line in os.popen("env").read().splitlines() if line.split("=")[0] not in [*CHANGE, "_"]),
    "folder": os.getcwd(), "mask": os.umask(0), "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "parent": open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[1:3],
    "processors": sorted(os.sched_getaffinity(0)), "scheduling": [os.sched_getscheduler(0), os.nice(0)],
    "memory": open("/proc/self/oom_score_adj").read(),
    "limits": {it: resource.getrlimit(getattr(resource, it)) for it in dir(resource) if it.startswith("RLIMIT_")},
    "handlers": {it.name: str(signal.getsignal(it)).split(" at ")[0] for it in signal.Signals},
    "kernel": of_kernel("SigBlk", "SigIgn", "SigCgt", "Threads", "Seccomp", "NoNewPrivs", "CapEff"),
    "threads": [threading.active_count(), threading.main_thread() is threading.current_thread(),
                threading.get_native_id() == os.getpid()],
    "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), locale.getlocale()],
    "collector": [gc.isenabled(), gc.get_threshold(), faulthandler.is_enabled()],
    "shown": [open("/proc/self/cmdline").read().replace("\\0", " ").strip(), open("/proc/self/comm").read()],
    "process": [prctl(2), prctl(37), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)],
}
json.dump(state, open(f"state-{sys.argv[1]}.json", "w"))
print(sys.argv[1], "warm" if WARM in THERE_FIRST else "cold")
"""
CHANGE = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT", "ELASTIC_STOP_FILE"]
STATE_PROGRAM = f"""
import os, sys, time
THERE_FIRST, WARM, CHANGE = set(sys.modules), "colorsys", {CHANGE}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import colorsys
    end = time.monotonic() + 60
    while not os.path.exists("warm"):
        assert time.monotonic() < end
        time.sleep(0.01)
    os._exit(9)
{STATE}
"""


@pytest.mark.parametrize("kind", ["script", "link", "module", "folder", "archive"])
def test_warm_worker_process_equals_a_cold_one(warm_runs, kind):
    """The program's view of its process is the same as without warm start."""
    folder = warm_runs.folder
    job = folder / "job"
    job.mkdir()
    for name in ("__main__.py", "main.py"):
        (job / name).write_text(STATE_PROGRAM)
    (folder / "link.py").symlink_to(job / "main.py")
    with zipfile.ZipFile(folder / "job.zip", "w") as archive:
        archive.write(job / "__main__.py", "__main__.py")
    kinds = {"script": ["job/main.py"], "link": ["link.py"], "module": ["-m", "job.main"], "folder": ["job"]}
    words = kinds.get(kind, ["job.zip"])
    seen = []
    for cold in (True, False):
        code, out, log = warm_runs.run(*words, "state", "--lr=1", cold=cold)
        assert code == 0, log
        assert out == f"state {'cold' if cold else 'warm'}\n"
        seen.append(json.loads((folder / "state-state.json").read_text()))
    cold_state, warm_state = seen
    warm_state["files"].remove(["pipe", False])  # the pipe through which it reports further imports
    for name, value in cold_state.items():
        assert warm_state[name] == value, name
    if kind == "module":
        assert warm_state["spec"][0] == "job.main"


ENDS = {
    "code": "sys.exit(3)",
    "words": "sys.exit('no data')",
    "success": "print('done'); sys.exit()",
    "error": "def step():\n    raise ValueError('bad loss')\nstep()",
    "error with a hook": "sys.excepthook = lambda *it: print('hook', it[1], file=sys.stderr); raise ValueError('bad')",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "os.abort()",
    "at exit": "import atexit; atexit.register(print, 'bye'); sys.exit(4)",
    "at once": "print('unflushed', flush=True); os._exit(5)",
    "a thread that still works": "import threading; threading.Timer(0.2, print, ['late']).start()",
    "syntax": "open('broken.py', 'w').write('a = (\\n'); import broken",
}


SOME_ENDS = [
    ["words", "error", "error with a hook", "interrupt", "signal", "at exit", "at once", "a thread that still works"]
]
OTHER_ENDS = [["code", "abort", "success"], ["syntax"]]
"""Each list is for one run: only its last end may end the job. Each of the other ends is like one of `SOME_ENDS`."""
assert {end for ends in SOME_ENDS + OTHER_ENDS for end in ends} == ENDS.keys()


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        pytest.param(["train.py"], SOME_ENDS, id="script"),
        pytest.param(["train.py"], OTHER_ENDS, id="script, other ends", marks=pytest.mark.nightly),
        pytest.param(["-m", "train"], SOME_ENDS + OTHER_ENDS, id="module", marks=pytest.mark.nightly),
    ],
)
def test_warm_worker_ends_like_a_cold_one(warm_runs, words, runs):
    """Exit code, output and traceback are the same, however it ends. Each round after the first ends in another way."""
    cases = "".join(f"if end == {name!r}:\n    " + code.replace("\n", "\n    ") + "\n" for name, code in ENDS.items())
    chosen = "end = sys.argv[int(os.environ['TORCHELASTIC_RESTART_COUNT'])]\nprint('colorsys' in BEFORE, file=starts)\n"
    opened = "starts = open('starts', 'a', buffering=1)"
    script = Path(warm_runs.script(chosen + cases, imports=f"import threading, atexit, signal, traceback\n{opened}"))
    script.write_text("import sys\nBEFORE = set(sys.modules)\n" + script.read_text())
    for number, ends in enumerate(runs):
        seen = []
        for cold in (True, False):
            logs = warm_runs.folder / f"logs-{number}-{cold}"
            flags = ["--redirects=3", f"--log-dir={logs}"]
            code, _, log = warm_runs.run(*flags, *words, *ends, cold=cold, restarts=len(ends))
            files = {path.relative_to(path.parents[1]): path.read_text() for path in logs.glob("[!l]*/*/rank-0.*")}
            failed = re.findall(r'worker failed: .*round=(\d+) reason="([^"]*)"', log)
            assert (warm_runs.folder / "starts").read_text().split() == [str(not cold)] * len(ends), log
            (warm_runs.folder / "starts").unlink()
            seen.append((code, files, failed))
        assert seen[0] == seen[1]
        assert len(files) == 2 * (1 + len(ends))


USES = """
import multiprocessing, queue
def square(n): return n * n
def own(q): q.put(os.getpid())
if __name__ == "__main__" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(square, range(4)))
        q = context.Queue()
        child = context.Process(target=own, args=(q,))
        child.start()
        print(q.get(timeout=30) == child.pid, child.join(60), child.exitcode)
"""


def test_warm_worker_can_use_multiprocessing(warm_runs):
    script = warm_runs.script("print('end')", imports=USES)
    code, out, log = warm_runs.run(script)
    assert (code, out.splitlines()) == (
        0,
        [line for method in ("fork", "spawn", "forkserver") for line in (f"{method} [0, 1, 4, 9]", "True None 0")]
        + ["end"],
    ), log


DRAWING = """
import random, uuid
GENERATOR, IDENTIFIER, NUMBER = random.Random(), uuid.uuid4(), random.random()
def sample(seeds=random.Random()):
    return seeds.random()
"""


@pytest.mark.torch
def test_torch_and_sympy_random_values_differ_by_worker(warm_runs):
    """Their modules draw at import, but stay in the template because most programs import them."""
    imports = (
        "BEFORE = set(sys.modules)\n"
        "from torch.distributed._composable import contract\n"
        "import sympy, sympy.core.random as of_sympy\n"
        "MODULES = ('torch.distributed._composable.contract', 'sympy.core.random', 'sympy.core.symbol')"
    )
    second = (
        "keys = sys.modules['torch.distributed._composable.contract']\n"
        "print(*[name in BEFORE for name in MODULES], keys.STATE_KEY, of_sympy.random(), sympy.Dummy().dummy_index)"
    )
    code, out, log = warm_runs.run(warm_runs.script(second, imports=imports), workers=2)
    assert code == 0, log
    one, other = (line.split() for line in out.splitlines())
    assert one[:3] == other[:3] == ["True"] * 3, log
    assert all(mine != theirs for mine, theirs in zip(one[3:], other[3:], strict=True))


def test_each_worker_has_its_own_variables_and_random_values(warm_runs):
    """Values inherited from the template would make all ranks sample alike."""
    (warm_runs.site / "drawing_lib.py").write_text(DRAWING)
    (warm_runs.site / "installed_lib.py").write_text("import os\nrank = os.environ.get('LOCAL_RANK')\n")
    (warm_runs.site / "user_of_it.py").write_text("import installed_lib\n")
    second = (
        "drawn = drawing_lib.GENERATOR.random(), drawing_lib.IDENTIFIER, drawing_lib.NUMBER, drawing_lib.sample()\n"
        "own = os.environ['RANK'], installed_lib.rank, 'user_of_it' in THERE_BEFORE, sys.argv[1], random.random()\n"
        "print(*own, *drawn)"
    )
    imports = "THERE_BEFORE = set(sys.modules)\nimport random, user_of_it, installed_lib, drawing_lib"
    script = warm_runs.script(second, imports=imports)
    code, out, log = warm_runs.run(script, "${local_rank}", workers=2)
    assert code == 0, log
    lines = sorted(line.split() for line in out.splitlines())
    assert [line[:4] for line in lines] == [["0", "0", "False", "0"], ["1", "1", "False", "1"]]
    assert len({word for line in lines for word in line[4:]}) == 10
    reasons = {reason for found in re.findall('reasons="(.*?)"', log) for reason in found.split("; ")}
    assert reasons == {"drawing_lib draws random values", "installed_lib reads LOCAL_RANK"}


def test_nothing_is_imported_from_the_current_directory(warm_runs):
    for name in ("job", "bin"):
        (warm_runs.folder / name).mkdir()
    for name in ("json", "socket", "resource", "select"):
        (warm_runs.folder / f"{name}.py").write_text("print('planted')\n")
    warm_runs.elastic.script(
        "bin/elastic.py", "import sys\nfrom elastic_core.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    script = warm_runs.script("import socket; print('end')", name="job/train.py")
    code, out, log = warm_runs.run(script, program="bin/elastic.py")
    assert (code, out) == (0, "end\n"), log


def test_module_next_to_the_script_may_shadow_one_of_ours(warm_runs):
    (warm_runs.folder / "resource.py").write_text("own = True\n")
    script = warm_runs.script("print('end')", imports="import resource; print(resource.own)")
    code, out, log = warm_runs.run(script, ready="warm start unavailable")
    assert (code, out) == (0, "True\nTrue\nend\n"), log
    assert f"resource is imported from another file by the workers: {warm_runs.folder / 'resource.py'}" in log


def test_second_round_starts_after_the_folder_was_removed(warm_runs):
    gone = warm_runs.folder / "gone"
    gone.mkdir()
    second, first = "print('second round')", f"os.rmdir({str(gone)!r})\n    os._exit(9)"
    script = warm_runs.script(second)
    code = Path(script).read_text().replace("os._exit(9)", first)
    Path(script).write_text(code.replace('exists("warm")', f"exists({str(warm_runs.folder / 'warm')!r})"))
    warm_runs.elastic.through = ["sh", "-c", f'cd {gone} && exec "$@"', "sh"]
    code, out, log = warm_runs.run(script)
    assert (code, out) == (0, "second round\n"), log


def test_closing_all_descriptors_does_not_corrupt_files(warm_runs):
    second = """
os.closerange(3, 256)
files = [open(f"checkpoint{place}", "wb") for place in range(30)]
import pyclbr, tabnanny
print(sum(os.stat(f"checkpoint{place}").st_size for place in range(30)))
"""
    code, out, log = warm_runs.run(warm_runs.script(second))
    assert (code, out) == (0, "0\n"), log


def test_imports_in_threads_are_learned(warm_runs):
    names = ["pyclbr", "tabnanny", "wave", "sched", "cmd", "mailbox", "plistlib", "sqlite3", "tomllib", "xmlrpc.client"]
    imports = f"""
import importlib, threading
threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in {names[:8]}]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
BEFORE = set(sys.modules)
import quopri
"""
    cache = warm_runs.folder / "cache"
    code, _, log = warm_runs.run(
        f"--warm-start-cache={cache}", warm_runs.script("pass", imports=imports), cached=["quopri"]
    )
    assert code == 0, log
    [file] = cache_files(cache)
    assert {*names[:8], "quopri"} <= json.loads(file.read_text())["modules"].keys()


def test_last_import_of_a_module_is_learned(warm_runs):
    """A module is recorded after the modules that it imports. Built-in modules raise no event of their own."""
    (warm_runs.site / "last.py").write_text("import xxsubtype\n")
    cache = warm_runs.folder / "cache"
    script = warm_runs.script("pass", imports="import last, quopri")
    code, _, log = warm_runs.run(f"--warm-start-cache={cache}", script, cached=["last", "quopri"])
    assert code == 0, log
    [file] = cache_files(cache)
    assert {"last", "xxsubtype", "quopri"} <= json.loads(file.read_text())["modules"].keys()


def test_cache_survives_a_change_of_the_number_of_workers(warm_runs):
    """For several workers, the agent sets OMP_NUM_THREADS, which C code reads at process start."""
    second = "print(b'OMP_NUM_THREADS=1' in open('/proc/self/environ', 'rb').read().split(b'\\0'))"
    imports = "BEFORE = set(sys.modules)"
    script, flags = warm_runs.script(second, imports=imports), [f"--warm-start-cache={warm_runs.folder / 'cache'}"]
    for workers, expected in ((1, ["False"]), (2, ["True"] * 2), (1, ["False"])):
        code, out, log = warm_runs.run(*flags, script, workers=workers)
        assert (code, out.split()) == (0, expected), log


@pytest.mark.parametrize("place", ["next to the script", "installed"])
def test_module_that_changes_during_the_run_is_read_again(warm_runs, place):
    folder = warm_runs.site if place == "installed" else warm_runs.folder
    (folder / "lib.py").write_text("version = 1\n")
    script = warm_runs.script("print(lib.version)", imports="import lib")
    process, log = warm_runs.start(script)
    warm_runs.until(log, "template ready", process)
    (folder / "lib.py").write_text("version = 22\n")
    if place == "installed":
        (folder / "lib-22.dist-info").mkdir()
    warm_runs.second_begins()
    assert process.wait(60) == 0
    assert log.with_suffix(".out").read_text() == "22\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\nif 'template' in sys.orig_argv: os.abort()", "bad ended the template: it ended by SIGABRT"),
        ("if 'template' in sys.orig_argv: raise OSError('no')", "bad raises OSError: no"),
        ("if 'template' in sys.orig_argv: bytearray(1 << 33)", "bad raises MemoryError: "),
    ],
    ids=["dies", "fails", "grows"],
)
def test_module_that_the_template_cannot_import_is_deferred(warm_runs, source, reason):
    (warm_runs.site / "bad.py").write_text(f"import sys\n{source}\n")
    script = warm_runs.script(
        "print('bad' in BEFORE, 'decimal' in BEFORE)", imports="BEFORE = set(sys.modules)\nimport bad"
    )
    code, out, log = warm_runs.run("--worker-starter-conf=memory=1000000000", script)
    assert (code, out) == (0, "False True\n"), log
    assert reason in log


def test_lost_template_costs_no_round(warm_runs):
    process, log = warm_runs.start(warm_runs.script("pass"))
    warm_runs.until(log, "template ready", process)
    pid = int(re.search(r"template ready: pid=(\d+)", log.read_text())[1])
    os.kill(pid, signal.SIGKILL)
    warm_runs.until(log, "template lost.*it was killed.*next attempt in 1 s", process)
    warm_runs.until(log, "template ready(.|\n)*template ready", process)
    warm_runs.second_begins()
    assert process.wait(60) == 0
    assert len(re.findall("template lost", log.read_text())) == 1


def test_hung_template_costs_no_round(warm_runs):
    script = warm_runs.script("print('second')")
    process, log = warm_runs.start(script)
    warm_runs.until(log, "template ready", process)
    pid = int(re.search(r"template ready: pid=(\d+)", log.read_text())[1])
    os.kill(pid, signal.SIGSTOP)
    warm_runs.second_begins()
    assert process.wait(60) == 0
    assert log.with_suffix(".out").read_text() == "second\n"
    assert 'template lost: reason="it did not fork within 2 s"' in log.read_text()


def cache_files(folder):
    return [path for path in Path(folder).iterdir() if not path.name.startswith(".")]


def test_cached_imports_warm_the_first_start_of_the_next_run(warm_runs):
    (warm_runs.site / "installed_lib.py").write_text("import os\nrank = os.environ.get('LOCAL_RANK')\n")
    imports = "BEFORE = set(sys.modules)\nimport random, installed_lib"
    second = "print([name in BEFORE for name in ('random', 'installed_lib')])"
    script = warm_runs.script(second, imports=imports)
    flags = (f"--warm-start-cache={warm_runs.folder / 'cache'}", "--max-restarts=1")
    assert warm_runs.run(*flags, script, cached=["random"])[0] == 0
    [file] = cache_files(warm_runs.folder / "cache")
    Path(script).write_text(Path(script).read_text().replace('== "0"', '== "never"'))
    code, out, log = warm_runs.run(*flags, script)
    assert (code, out) == (0, "[True, False]\n"), log
    shown = warm_runs.elastic.finish(warm_runs.elastic.start("explain", "--warm-start", *flags, script)).out
    assert "installed_lib reads LOCAL_RANK" in shown
    assert str(file) in shown
    file.write_text("not for us")
    assert warm_runs.run(*flags, script, ready="workers started")[:2] == (0, "[False, False]\n")


OTHER_VARIABLES = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # the agent sets it only if it is unset


def test_cached_imports_warm_a_changed_first_start(warm_runs):
    flags, script = cached_script(warm_runs)
    for name, changed, variables in (("variables", (), OTHER_VARIABLES), ("flag", ("--hang-timeout=600",), {})):
        cache = shutil.copytree(warm_runs.folder / "cache", warm_runs.folder / name)  # each run rewrites its cache
        code, out, log = warm_runs.run(*flags, f"--warm-start-cache={cache}", *changed, script, **variables)
        assert (code, out) == (0, "True\n"), log


@pytest.mark.torch
def test_first_start_waits_for_a_template_with_other_variables(warm_runs):
    """The first template is ready long before the round forms, and is discarded then."""
    flags, script = cached_script(warm_runs)
    where = f"--rdzv-endpoint={warm_runs.folder / 'store'}"
    slow = ("--rdzv-backend=file", where, "--rdzv-id=job", "--rdzv-conf=last_call_timeout=2")
    code, out, log = warm_runs.run(*flags, *slow, script, meets="--nnodes=1:2", **OTHER_VARIABLES)
    assert (code, out) == (0, "True\n"), log


def cached_script(warm_runs):
    """The flags and the script of a run whose imports are cached; the script no longer fails in its first round."""
    script = warm_runs.script("print('random' in BEFORE)", imports="BEFORE = set(sys.modules)\nimport random")
    flags = (f"--warm-start-cache={warm_runs.folder / 'cache'}", "--max-restarts=1")
    assert warm_runs.run(*flags, script, cached=["random"])[0] == 0
    Path(script).write_text(Path(script).read_text().replace('== "0"', '== "never"'))
    return flags, script


FAILS_EARLY = """
import os, sys, time
from pathlib import Path

import lib
slow = Path(os.environ["SLOW"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    slow.touch()
    while slow.read_text() != "template":
        time.sleep(0.01)
    slow.write_text("")
    sys.exit(1)
while slow.exists():
    time.sleep(0.01)
"""


def test_template_is_held_while_workers_start_cold(warm_runs, tmp_path, monkeypatch):
    """Otherwise both would import at the same time: with autogroups, idle priority applies only within a session."""
    slow = tmp_path / "slow"
    monkeypatch.setenv("SLOW", str(slow))
    (warm_runs.site / "lib.py").write_text(
        "import os, time\n"
        "if os.path.exists(os.environ['SLOW']) and os.environ.get('TORCHELASTIC_RESTART_COUNT') is None:\n"
        "    open(os.environ['SLOW'], 'w').write('template')\n"
        "    while os.path.exists(os.environ['SLOW']):\n"
        "        time.sleep(0.01)\n"
    )
    process, log = warm_runs.start(warm_runs.elastic.script("train.py", FAILS_EARLY))

    def template():
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):
                if " ".join(child.cmdline()).startswith("elastic: template"):
                    return child.status()
        return None

    eventually(lambda: template() == psutil.STATUS_STOPPED, timeout=60)
    eventually(lambda: template() != psutil.STATUS_STOPPED, timeout=60)
    slow.unlink()
    assert process.wait(60) == 0, log.read_text()


def test_excluded_module_is_not_imported_by_the_template(warm_runs):
    (warm_runs.site / "lib.py").write_text("")
    imports = "BEFORE = set(sys.modules)\nimport random, lib"
    script = warm_runs.script("print([name in BEFORE for name in ('random', 'lib')])", imports=imports)
    code, out, log = warm_runs.run("--warm-start-exclude=lib,email", script)
    assert (code, out) == (0, "[True, False]\n"), log


def test_killed_agent_leaves_neither_workers_nor_template(warm_runs):
    script = warm_runs.script("open('second', 'w').close(); time.sleep(600)")
    process, log = warm_runs.start(script)
    warm_runs.until(log, "template ready", process)
    warm_runs.second_begins()
    eventually((warm_runs.folder / "second").exists, timeout=60)
    process.kill()
    process.wait(60)
    eventually(lambda: not warm_runs.elastic.living(), timeout=60)


def test_hung_warm_worker_reports_its_stacks(warm_runs):
    second = "def stuck():\n    time.sleep(600)\nstuck()"
    script = warm_runs.script(second)
    code, _, log = warm_runs.run("--hang-timeout=3", "--hang-warmup=0", script)
    assert code == 1
    assert "hang" in log
    assert "in stuck" in log


def test_virtual_local_rank_shows_one_device(warm_runs):
    script = warm_runs.script("print(os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])")
    code, out, log = warm_runs.run("--virtual-local-rank", script, workers=2, CUDA_VISIBLE_DEVICES="4,7")
    assert (code, sorted(out.splitlines())) == (0, ["0 4", "0 7"]), log


def test_non_python_program_starts_cold_and_logs_it(warm_runs):
    code, out, log = warm_runs.run("--no-python", "echo", "hello", ready="warm start unavailable")
    assert (code, out) == (0, "hello\n")
    assert len(re.findall("warm start unavailable", log)) == 1


@pytest.mark.parametrize(
    "words", [["-um", "tool", "a"], ["-mtool", "a"], ["-Bc", "import tool", "a"], ["./python.sh", "a"]]
)
def test_any_command_line_behaves_as_without_warm_start(warm_runs, words):
    warm_runs.elastic.script("tool.py", "import sys; print(len(sys.argv), sys.argv[1:])")
    Path(warm_runs.elastic.script("python.sh", "#!/bin/sh\necho 2 \"['$1']\"\n")).chmod(0o755)
    command = words if words[0].endswith(".sh") else [sys.executable, *words]
    code, out, log = warm_runs.run("--no-python", *command, ready="warm start unavailable|run finished")
    assert (code, out) == (0, "2 ['a']\n"), log


PROGRAM = """
import json, multiprocessing, os, signal, sys, time
from elastic_core import LaunchConfig, elastic_launch, log
from elastic_core.multiprocessing import DefaultLogsSpecs, Std
from elastic_core.errors import ChildFailedError

def work(words, lock, queue):
    import colorsys
    there = "colorsys" in BEFORE
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        end = time.monotonic() + 60
        while not os.path.exists("warm"):
            assert time.monotonic() < end
            time.sleep(0.01)
        os._exit(9)
    with lock:
        queue.put(os.environ["RANK"])
    parent = multiprocessing.parent_process()
    if words == "fail":
        raise ValueError("bad loss")
    if words == "killed":
        print("the last words")
        os.kill(os.getpid(), 9)
    name = multiprocessing.current_process().name
    blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [there, words, name, parent.is_alive(), parent.pid == os.getppid(), __name__, blocked]

BEFORE = set(sys.modules)
if __name__ == "__main__":
    log.configure("human", "info")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    specs = DefaultLogsSpecs("logs", Std.ALL) if sys.argv[1] == "killed" else None
    config = LaunchConfig(1, 1, 2, rdzv_backend="local", max_restarts=1, warm_start=True, logs_specs=specs)
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    try:
        done = elastic_launch(config, work)(sys.argv[1], spawn.Lock(), queue)
    except ChildFailedError as error:
        print([failure.message for failure in error.failures.values()])
    else:
        print(json.dumps(done), sorted(queue.get(timeout=10) for _ in done))
"""


@pytest.mark.parametrize("words", ["text-${local_rank}", "fail", "killed"])
def test_launched_functions_start_warm(warm_runs, words):
    process = warm_runs.elastic.start_to_files("program", warm_runs.elastic.script("main.py", PROGRAM), words)
    log = warm_runs.folder / "program.err"
    warm_runs.until(log, "template ready", process)
    warm_runs.second_begins()
    assert process.wait(60) == 0, log.read_text()
    eventually(lambda: not warm_runs.elastic.living(), timeout=60)  # the resource tracker ends last
    out = log.with_suffix(".out").read_text()
    if words == "fail":
        assert "bad loss" in out
        return
    if words == "killed":
        assert "the last words\n" in [
            path.read_text() for path in warm_runs.folder.glob("logs/*/attempt_1/*/stdout.log")
        ]
        return
    returned, ranks = json.loads(out.partition("} ")[0] + "}"), out.partition("} ")[2]
    assert [value[:2] + value[3:] for value in returned.values()] == [
        [True, f"text-{rank}", True, True, "__mp_main__", False] for rank in range(2)
    ]
    assert [value[2].rstrip("0123456789") for value in returned.values()] == ["SpawnProcess-"] * 2
    assert ranks.strip() == "['0', '1']"


def adopts():
    """Whether this process adopts orphaned grandchildren."""
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
    return value.value == 1


def test_two_threads_can_adopt_children():
    """Two launches in threads may fork warm workers at the same time."""
    entered, leave = threading.Event(), threading.Event()

    def inside():
        with adopting():
            entered.set()
            assert leave.wait(60)
            return adopts()

    with ThreadPoolExecutor(1) as pool:
        with adopting():
            other = pool.submit(inside)
            entered.wait(0.2)
        leave.set()
        assert other.result(60)
    assert not adopts()
