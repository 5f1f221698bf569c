"""Side effects of a module's import, and whether they defer the module to the workers. Each test runs a separate
Python, because a watch belongs to a whole process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile

import pytest
from elastic_warm.unsafe_imports import ProcessState, change

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="warm start is for Linux")]

PROGRAM = """
import importlib, json, os, sys
folder, elsewhere, result, expected, excluded, *names = sys.argv[1:]
from elastic_warm.unsafe_imports import DeferredImport, Watch
sys.path[:0] = [folder, elsewhere]
left = {}
found = lambda origin: not origin.startswith(elsewhere)
watch = Watch(lambda name: name in ("RANK", "MASTER_PORT"), found, left.setdefault, ["RANK"])
watch.exclude([excluded] if excluded else [])
watch.expect(json.loads(expected), {})
watch.begin()
raised = []
for name in names:
    try:
        watch.run(lambda: importlib.import_module(name))
    except BaseException as error:
        raised.append(f"{type(error).__name__}: {error}")
present = [name for name in names if name in sys.modules]
watch.end()
again = {name: os.environ.get(name) for name in ("RANK", "STEADY")}
json.dump({"left": left, "clean": watch.clean, "raised": raised, "present": present, "again": again,
           "finder": type(vars(importlib.machinery.PathFinder)["find_spec"]).__name__,
           "loader": "exec_module" in vars(importlib.machinery.SourceFileLoader)}, open(result, "w"))
os._exit(0)
"""


@pytest.fixture
def watched(tmp_path):
    """A function that imports modules, given by their source, under a watch, and returns its findings."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "elsewhere").mkdir()

    def watched(*names, expected=None, excluded="", elsewhere=None, **sources):
        for folder, modules in (("installed", sources), ("elsewhere", elsewhere or {})):
            for name, source in modules.items():
                (tmp_path / folder / f"{name}.py").write_text(textwrap.dedent(source))
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        result = tmp_path / "result.json"
        words = [str(tmp_path / "installed"), str(tmp_path / "elsewhere"), str(result), json.dumps(expected or {})]
        with open(tmp_path / "output", "w") as output:
            subprocess.run(
                [sys.executable, str(program), *words, excluded, *(names or sources)],
                stdout=output, stderr=output, timeout=60, check=True,
            )  # fmt: skip
        return json.loads(result.read_text())

    return watched


DRAWS = "draws random values"
SHARED = "seeds or draws from the global random generator of {}"
TAINTS = {
    "import os; os.environ['STEADY'] = os.environ.get('RANK', '')": "reads RANK",
    "import os; 'RANK' in os.environ": "reads RANK",
    "from os import getenv; getenv('MASTER_PORT')": "reads MASTER_PORT",
    "import os; os.environb.get(b'RANK')": "reads RANK",
    "import os; kept = dict(os.environ)": "keeps a copy of all variables",
    "import os; kept = {**os.environ}; ": "keeps a copy of all variables",
    "import os\nclass A:\n  def __init__(self): self.a = dict(os.environ)\na = [A()]": "keeps a copy of all variables",
    "import os; kept = os.environ.copy()": "keeps a copy of all variables",
    "import os; kept = {name: value for name, value in os.environ.items()}": "keeps a copy of all variables",
    "import os; {name.lower(): value for name, value in os.environ.items()}.get('rank')": "reads RANK",
    "import os; dict(os.environ).get('RANK')": "reads RANK",
    "import os; any(name == 'RANK' for name in os.environ)": "reads RANK",
    "import os; [value for name, value in os.environ.items() if name.startswith('RA')]": "reads RANK",
    "import os; [name for name in os.environ if 'ANK' in name.upper()]": "reads RANK",
    "import os; kept = [f'{name}={value}' for name, value in os.environ.items()]": "reads RANK",
    "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "starts a thread",
    "import socket; kept = socket.socket()": "holds socket open",
    "kept = open('/dev/full', 'w')": "holds /dev/full open",
    "import os; fd = os.open('/dev/full', os.O_WRONLY); os.dup2(fd, 0); os.close(fd)": "holds /dev/full open",
    "import signal; signal.signal(signal.SIGUSR1, print)": "sets a signal handler",
    "import faulthandler; faulthandler.enable()": "sets a signal handler",
    "import os; os.chdir('/')": "changes the working directory",
    "import subprocess; kept = subprocess.Popen(['sleep', '1'])": "starts a process",
    "import sys; print('deprecated', file=sys.stderr)": "writes to its output",
    "import os; os.write(1, b'x')": "writes to its output",
    "import random; random.seed(1)": SHARED.format("random"),
    "from random import *; seed(1); random()": SHARED.format("random"),
    "import random; kept = random.getrandbits(64)": SHARED.format("random"),
    "import random; kept = random.Random()": DRAWS,
    "import random; kept = random.Random(); kept.seed(a=None)": DRAWS,
    "import os; kept = os.urandom(8)": DRAWS,
    "from os import getrandom; kept = getrandom(8)": DRAWS,
    "import uuid; kept = uuid.uuid4()": DRAWS,
    "import uuid; kept = uuid.uuid1()": DRAWS,
    "from secrets import token_hex; kept = token_hex()": DRAWS,
    "import tempfile; kept = tempfile.mktemp()": DRAWS,
    "import multiprocessing.synchronize as s, multiprocessing as m; kept = s.Lock(ctx=m.get_context('fork'))": DRAWS,
    "import tempfile; tempfile.mkdtemp(dir=__file__.rpartition('/')[0])": DRAWS,
}


def test_modules_with_per_worker_effects_are_deferred(watched):
    sources = {f"module{place}": source for place, source in enumerate(TAINTS)}
    seen = watched("random", "tempfile", *sources, **sources)
    assert {sources[name]: why for name, why in seen["left"].items()} == TAINTS
    assert not seen["clean"]


HARMLESS = [
    "import os; kept = {name: value for name, value in os.environ.items() if name.startswith('TQDM_')}",
    "import os; kept = [os.environ[name] for name in os.environ if name.startswith('P')]",
    "import os; len(os.environ); list(os.environ)",
    "import os; [name for name in os.environ if name.lower()[-6:] == '_proxy' or 'RANKS' in name]",
    "import os; {**os.environ}.get('PATH'); sorted(os.environ); 'RANKS' in [*os.environ]",
    "import os, subprocess; subprocess.run(['true'], env={**os.environ, 'LC_ALL': 'C'})",
    "import os; os.environ.get('STEADY'); os.environ['OTHER'] = '1'",
    "import socket; socket.socket().close()",
    "import threading; thread = threading.Thread(target=print, args=('',)); del thread",
    "open(__file__).close()",
    "import subprocess; subprocess.run(['true'])",
    "import random; kept = random.Random(1); kept.random(); kept.seed(2)",
    "import random, uuid; kept = uuid.UUID(int=1), random.SystemRandom()",
    "import multiprocessing.process",
    "import os\nclass Source: draw = os.urandom\ndef later(): return Source().draw(8)",
    "import tempfile; kept = tempfile.gettempdir()",
    "import os\ndef look(): variables = dict(os.environ); variables.get('A')\nlook()",
    "import os, atexit; atexit.register(os.getpid)",
    "with open(__file__): import colorsys",
    "import ctypes, threading; begun = threading.Event()\ndef run():\n"
    "  ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd', 0, 0, 0); begun.set(); threading.Event().wait()\n"
    "threading.Thread(target=run, daemon=True).start(); begun.wait()",
]


def test_modules_without_side_effects_are_kept(watched):
    sources = {f"module{place}": source for place, source in enumerate(HARMLESS)}
    seen = watched("random", *sources, **sources)
    assert ({sources[name]: why for name, why in seen["left"].items()}, seen["clean"]) == ({}, True)
    assert seen["present"] == ["random", *sources]


@pytest.mark.torch
def test_module_that_draws_random_values_is_deferred(watched):
    """Modules with a fixed seed are kept. So are numpy and torch themselves, whose global generators each worker
    reseeds."""
    sources = {
        "folder": "import tempfile; kept = tempfile.TemporaryDirectory()",
        "drawn": "import numpy; kept = numpy.random.default_rng()",
        "shared": "import numpy; kept = numpy.random.rand()",
        "tensor": "import torch; kept = torch.rand(1)",
        "seeded": "import numpy, torch; kept = numpy.random.default_rng(1), torch.Generator()",
    }
    seen = watched("random", "numpy", "torch", *sources, **sources)
    assert seen["left"] == {
        "folder": DRAWS,
        "drawn": DRAWS,
        "shared": SHARED.format("numpy"),
        "tensor": SHARED.format("torch"),
    }


def test_module_from_an_archive_is_deferred(watched, tmp_path):
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("zipped.py", "import os; rank = os.environ.get('RANK')")
    source = f"import sys; sys.path.append({str(tmp_path / 'lib.zip')!r}); import zipped"
    assert watched("one", one=source)["left"] == {"zipped": "is loaded by zipimporter", "one": "imports zipped"}


def test_importers_of_a_deferred_module_are_deferred(watched):
    sources = {
        "rank": "import os; os.getenv('RANK')",
        "user": "import rank",
        "top": "import user",
        "free": "import json",
    }
    seen = watched("top", "free", **sources)
    assert seen["left"] == {"rank": "reads RANK", "user": "imports rank", "top": "imports user"} | {
        "top": seen["left"]["top"]
    }
    assert seen["left"]["top"].startswith("imports ")
    assert "free" not in seen["left"]


def test_effect_counts_against_the_module_that_calls(watched):
    helper = "import os\ndef rank(): return os.environ.get('RANK')"
    assert watched("helper", "user", helper=helper, user="import helper; helper.rank()")["left"] == {
        "user": "reads RANK"
    }


def test_module_outside_installations_is_deferred(watched):
    seen = watched("lib", lib="import mine", elsewhere={"mine": ""})
    assert seen["left"].keys() == {"lib", "mine"}
    assert seen["left"]["lib"] == "imports mine"
    assert seen["left"]["mine"].endswith("elsewhere/mine.py, which is not part of an installation")
    assert not seen["clean"]


def test_deferral_cannot_be_caught_by_an_importer(watched):
    seen = watched("lib", lib="try:\n    import mine\nexcept Exception:\n    mine = None", elsewhere={"mine": ""})
    assert seen["left"]["lib"] == "imports mine"


def test_module_that_only_workers_find_defers_its_importer(watched):
    """For example, a package looks for an optional module in the script's folder."""
    optional = "try:\n    import plugin\nexcept ImportError:\n    plugin = None"
    assert watched("lib", lib=optional)["left"] == {}
    assert watched("lib", lib=optional, expected={"plugin": "/job/plugin.py"})["left"] == {
        "lib": "looks for plugin, which only the workers can find"
    }


def test_module_that_is_another_file_for_workers_is_deferred(watched):
    seen = watched("lib", lib="import same", same="", expected={"same": "/job/same.py"})
    assert seen["left"] == {"lib": "imports same", "same": "is imported from another file by the workers: /job/same.py"}


def test_excluded_package_is_deferred(watched):
    seen = watched("lib", "same", lib="import same", same="", excluded="same")
    assert seen["left"] == {"lib": "imports same", "same": "is excluded by --warm-start-exclude"}
    assert seen["present"] == []


def test_error_of_a_module_reaches_the_caller(watched):
    seen = watched("bad", bad="raise SystemExit(3)")
    assert seen["raised"] == ["SystemExit: 3"]


def test_watch_removes_its_hooks(watched):
    seen = watched("one", one="import os; os.environ['RANK'] = '7'")
    assert (seen["again"]["RANK"], seen["finder"], seen["loader"]) == ("7", "classmethod", False)


def state(**changed):
    whole = {"threads": 1, "files": frozenset(), "handlers": (b"0", b"0"), "folder": "/", "children": False}
    return ProcessState(**{**whole, "output": 0, "generators": {}, **changed})


def test_fewer_threads_or_children_are_no_change():
    assert change(state(threads=2, children=True), state()) == ""
    assert change(state(), state(threads=2)) == "starts a thread"


def test_new_generator_is_no_change():
    assert change(state(), state(generators={"numpy": 1})) == ""
    assert change(state(generators={"numpy": 1}), state(generators={"numpy": 2})) == SHARED.format("numpy")
