"""The reference lists exactly the environment variables in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.resolve import READ

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE, WORKER = ((REFERENCE / name).read_text() for name in ("environment.md", "worker-environment.md"))
FILES = [*ROOT.glob("elastic_core/**/*.py"), *ROOT.glob("plugins/*/elastic_*/**/*.py")]

SPECIAL = {name for spec in SPECS.values() for name in spec.also_reads}

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?")

NO_VARIABLES = {
    *("CERTIFICATE_VERIFY_FAILED", "KEY_VALUES_MISMATCH", "WRONG_VERSION"),  # error texts of OpenSSL
    *("TCP_KEEPIDLE", "TCP_KEEPINTVL"),  # constants of sockets
    *("DEADLINE_EXCEEDED", "PERMISSION_DENIED"),  # status codes of gRPC
    *("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),  # values of GCP's metadata server
    *("BACKEND_OPTIONS", "DEFAULT_ROLE", "POINTER_PATIENCE"),  # names of Python
    *("SC_PAGE_SIZE", "SC_PHYS_PAGES"),  # names for sysconf
    *("GROUP_", "ROLE_", "TORCHELASTIC_"),  # prefixes of names
    *("GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),  # the same
}
"""What is written like a variable in the code and is none."""


def looked_up(node):
    """Return the string that is looked up in, for example, `x["A"]`, `x.get("A")`, `{"A": ...}` or `"A" in x`."""
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
    """Return the variables in one file. A name that ends with an underscore is a prefix."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} if "_" in node.value else set()
            found |= set(re.findall(r"environ\[[\"'](\w+)", node.value))  # a script inside the script
        found |= looked_up(node)
    return {name for name in found if isinstance(name, str) and len(name) > 2 and NAME.fullmatch(name)}


@cache
def code():
    """Return every variable that the code names, including those of settings."""
    ours = {name for spec in SPECS.values() for name in spec.variables()}
    return ours.union(*(variables_in(path.read_text()) for path in FILES)) - NO_VARIABLES - {"ELASTIC_", "PET_"}


def told(page):
    return set(re.findall(r"`([A-Z][A-Z0-9_]{2,})`", page))


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_pages_list_exactly_the_variables_of_the_code():
    of_reference = (told(PAGE) | told(WORKER)) - {
        "FATAL",
        "ELASTIC_",
    }  # a value, and the prefix of the options' variables
    assert code() - of_reference == set()
    assert of_reference - code() == set()


def test_torchruns_other_variable_names_are_listed():
    below = section("Settings").partition("Variables for which torchrun has")[2]
    assert set(re.findall(r"^\| `(\w+)`", below, re.M)) == SPECIAL


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_settings_from_a_scheduler_are_listed(name):
    flags = re.search(rf"^\| `{name}` \| (.*) \|$", PAGE, re.M)[1]
    assert set(re.findall(r"--[\w-]+", flags)) == {spec.flag for spec in SPECS.values() if name in spec.also_reads}


def test_scheduler_variables_are_divided_by_use():
    taken, looked_at = section("Scheduler").split("| also read")
    of_scheduler = {name for name in code() if name.startswith(("SLURM_", "JOB_"))}
    assert told(taken) == {name for names in READ.values() for name in names}
    assert told(taken) | told(looked_at) == of_scheduler


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| (elastic-[\w-]+) \|", PAGE, re.M), ids=lambda row: row[0])
def test_documented_plugin_variables_are_in_the_plugins_code(row):
    name, plugin = row
    assert name in set().union(
        *(variables_in(path.read_text()) for path in ROOT.glob(f"plugins/{plugin}/elastic_*/**/*.py"))
    )
