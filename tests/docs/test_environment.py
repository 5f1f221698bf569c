"""The reference names every environment variable of the code, and no other; and no page names one that nobody knows."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ
from elastic_core.errors import ExitCode

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE, WORKER = ((REFERENCE / name).read_text() for name in ("environment.md", "worker-environment.md"))
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md"), ROOT / "README.md", ROOT / "SECURITY.md"])
FILES = [*ROOT.glob("elastic_core/**/*.py"), *ROOT.glob("plugins/*/elastic_*/**/*.py")]

SPECIAL = {name for spec in SPECS.values() for name in spec.also_reads}

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?")
LONG = re.compile(r"(?<![\w{-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w*}])")
"""What looks like a variable wherever it stands; a name without an underscore must be looked up in an environment."""

NO_VARIABLES = {
    *("CERTIFICATE_VERIFY_FAILED", "KEY_VALUES_MISMATCH", "WRONG_VERSION"),  # OpenSSL says so
    *("TCP_KEEPIDLE", "TCP_KEEPINTVL"),  # of sockets
    *("DEADLINE_EXCEEDED", "PERMISSION_DENIED"),  # gRPC's codes
    *("BACKEND_OPTIONS", "DEFAULT_ROLE", "POINTER_PATIENCE"),  # names of Python's
    *("SC_PAGE_SIZE", "SC_PHYS_PAGES"),  # what sysconf is asked for
    *("GROUP_", "ROLE_", "TORCHELASTIC_"),  # with which names begin
    *("GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),  # the same
}
"""What is written like a variable in the code and is none."""

OF_OTHERS = {
    "SOURCE_DATE_EPOCH": "of those who build packages",
    "ROOT_PASSWORD": "of the shell in an example",
    "RES_OPTIONS": "the C library's",
    "OTEL_SERVICE_NAME": "OpenTelemetry's",
    "SLURM_JOB_NODELIST": "a batch script's",
    "TORCH_ELASTIC_WORKER_IDENTICAL": "torchrun's, and not read here",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "torchrun's, and not set here",
    "USE_LIBUV": "torch's",
    "NCCL_DEBUG": "NCCL's",
    "NCCL_SOCKET_IFNAME": "NCCL's",
    "TORCH_DISTRIBUTED_DEBUG": "torch's",
}
"""Variables that the pages name and the code does not read."""

CONSTANTS = {
    "BACKEND_OPTIONS",
    "DEFAULT_GROUP",
    "DEFAULT_ROLE",
    "EXIT_CODE_MEANING",
    "IPC_LOCK",
    "PR_SET_PDEATHSIG",
    *ExitCode.__members__,
}
"""Names on the pages that are Python's or the kernel's."""


def looked_up(node):
    """The string by which something is looked up: `x["A"]`, `x.get("A")`, `{"A": ...}`, `"A" in x`."""
    match node:
        case ast.Subscript(slice=ast.Constant(value)):
            return {value}
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "getenv" | "setdefault"), args=[ast.Constant(value), *_]):
            return {value}
        case ast.Dict(keys=keys):
            return {key.value for key in keys if isinstance(key, ast.Constant)}
        case ast.Compare(left=ast.Constant(value), ops=[ast.In() | ast.NotIn()]):
            return {value}
    return set()


def variables_in(text):
    """Of one file. A name that ends with an underscore is the beginning of some."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} if "_" in node.value else set()
            found |= set(re.findall(r"environ\[[\"'](\w+)", node.value))  # a script within the script
        found |= looked_up(node)
    return {name for name in found if isinstance(name, str) and len(name) > 2 and NAME.fullmatch(name)}


@cache
def code():
    """Every variable that the code names, those of settings included."""
    ours = {name for spec in SPECS.values() for name in spec.variables()}
    return ours.union(*(variables_in(path.read_text()) for path in FILES)) - NO_VARIABLES - {"ELASTIC_", "PET_"}


def told(page):
    return set(re.findall(r"`([A-Z][A-Z0-9_]{2,})`", page))


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_variable_of_the_code_is_told_and_no_other():
    of_reference = (told(PAGE) | told(WORKER)) - {"FATAL", "ELASTIC_"}  # a value, and the beginning of those of options
    assert code() - of_reference == set()
    assert of_reference - code() == set()


def test_what_torchrun_names_otherwise_is_told():
    below = section("Settings").partition("Variables that torchrun has")[2]
    assert set(re.findall(r"^\| `(\w+)`", below, re.M)) == SPECIAL


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_it_is_told_which_settings_it_makes(name):
    flags = re.search(rf"^\| `{name}` \| (.*) \|$", PAGE, re.M)[1]
    assert set(re.findall(r"--[\w-]+", flags)) == {spec.flag for spec in SPECS.values() if name in spec.also_reads}


def test_what_is_read_of_a_scheduler_is_told_apart_from_what_is_looked_at():
    taken, looked_at = section("Of a scheduler").split("| also read")
    of_scheduler = {name for name in code() if name.startswith(("SLURM_", "JOB_"))}
    assert told(taken) == {name for names in READ.values() for name in names}
    assert told(taken) | told(looked_at) == of_scheduler


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| (elastic-[\w-]+) \|", PAGE, re.M), ids=lambda row: row[0])
def test_what_is_told_of_a_plugin_is_in_its_code(row):
    name, plugin = row
    assert name in set().union(
        *(variables_in(path.read_text()) for path in ROOT.glob(f"plugins/{plugin}/elastic_*/**/*.py"))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_no_variable_that_there_is_not(page):
    named = {name for words in re.findall(r"`([^`\n]+)`", page.read_text()) for name in LONG.findall(words)}
    assert named - code() - OF_OTHERS.keys() - CONSTANTS == set()


def test_the_lists_have_nothing_that_is_no_longer_there():
    pages = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in (*OF_OTHERS, *CONSTANTS) if name not in pages] == []
    assert OF_OTHERS.keys() & code() == set()
    sources = "\n".join(path.read_text() for path in FILES)
    assert [name for name in NO_VARIABLES if f'"{name}"' not in sources] == []
