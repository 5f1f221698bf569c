"""The reference names every environment variable of the code, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE, WORKER = ((REFERENCE / name).read_text() for name in ("environment.md", "worker-environment.md"))
FILES = [*ROOT.glob("elastic_core/**/*.py"), *ROOT.glob("plugins/*/elastic_*/**/*.py")]

SPECIAL = {name for spec in SPECS.values() for name in spec.also_reads}

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?")

NO_VARIABLES = {
    *("CERTIFICATE_VERIFY_FAILED", "KEY_VALUES_MISMATCH", "WRONG_VERSION"),  # OpenSSL says so
    *("TCP_KEEPIDLE", "TCP_KEEPINTVL"),  # of sockets
    *("DEADLINE_EXCEEDED", "PERMISSION_DENIED"),  # gRPC's codes
    *("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),  # values of GCP's metadata server
    *("BACKEND_OPTIONS", "DEFAULT_ROLE", "POINTER_PATIENCE"),  # names of Python's
    *("SC_PAGE_SIZE", "SC_PHYS_PAGES"),  # what sysconf is asked for
    *("GROUP_", "ROLE_", "TORCHELASTIC_"),  # with which names begin
    *("GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),  # the same
}
"""What is written like a variable in the code and is none."""


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
    below = section("Settings").partition("Variables for which torchrun has")[2]
    assert set(re.findall(r"^\| `(\w+)`", below, re.M)) == SPECIAL


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_it_is_told_which_settings_it_makes(name):
    flags = re.search(rf"^\| `{name}` \| (.*) \|$", PAGE, re.M)[1]
    assert set(re.findall(r"--[\w-]+", flags)) == {spec.flag for spec in SPECS.values() if name in spec.also_reads}


def test_what_is_read_of_a_scheduler_is_told_apart_from_what_is_looked_at():
    taken, looked_at = section("Scheduler").split("| also read")
    of_scheduler = {name for name in code() if name.startswith(("SLURM_", "JOB_"))}
    assert told(taken) == {name for names in READ.values() for name in names}
    assert told(taken) | told(looked_at) == of_scheduler


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| (elastic-[\w-]+) \|", PAGE, re.M), ids=lambda row: row[0])
def test_what_is_told_of_a_plugin_is_in_its_code(row):
    name, plugin = row
    assert name in set().union(
        *(variables_in(path.read_text()) for path in ROOT.glob(f"plugins/{plugin}/elastic_*/**/*.py"))
    )
