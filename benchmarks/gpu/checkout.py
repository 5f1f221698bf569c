"""Make a checkout usable without installing it: no network, no pip.

Entry points are found through the metadata of installed packages, so this writes such metadata for the core and the
plugins into a temporary folder. Packages that the machine lacks are unpacked from a folder of wheels. Both end up in
PYTHONPATH, which launchers, agents and workers inherit.

Only the standard library is imported here, because other packages may be missing.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECTS = (
    "",
    "plugins/elastic-c10d",
    "plugins/elastic-etcd",
    "plugins/elastic-file-timer",
    "plugins/elastic-http-health",
    "plugins/elastic-testing",
    "plugins/elastic-warm",
    "examples/elastic-sqlite",
)
NEEDED = ("pluggy", "psutil", "structlog", *(("tomli",) if sys.version_info < (3, 11) else ()))
"""The packages that the core needs; their modules have the same names."""

COMPILED = ("psutil",)


class MissingPackages(Exception):
    """Packages that are neither installed nor among the wheels. The message explains how to get them."""


def lacking() -> list[str]:
    """The packages of `NEEDED` that cannot be imported."""
    importlib.invalidate_caches()
    return [name for name in NEEDED if find_spec(name) is None]


def installed() -> bool:
    """Whether the core is an installed package."""
    try:
        metadata.distribution("elastic-core")
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def usable(wheels: Path) -> Iterator[None]:
    """Make the core, the plugins and their dependencies importable for this process and its descendants, until the end
    of the block. Does nothing if all of them are installed.

    Raises:
        MissingPackages: there is no wheel for a package that is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-checkout-") as folder:
        paths: list[Path] = []
        if missing := lacking():
            unpack(wheels, missing, Path(folder) / "wheels")
            paths.append(Path(folder) / "wheels")
        if not installed():
            for project in PROJECTS:
                describe(ROOT / project, Path(folder) / "metadata")
            paths += [Path(folder) / "metadata", *(ROOT / project for project in PROJECTS)]
        before, old = sys.path[:], os.environ.get("PYTHONPATH")
        sys.path[:0] = map(str, paths)
        if paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([old] if old else [])])
        try:
            if missing := lacking():
                raise MissingPackages(advice(missing, wheels))
            yield
        finally:
            sys.path[:] = before
            if paths:
                os.environ.pop("PYTHONPATH")
                os.environ.update({"PYTHONPATH": old} if old is not None else {})


def unpack(wheels: Path, names: Sequence[str], into: Path) -> None:
    """Unpack the wheels of these packages. Skips packages without a wheel. A wheel for another Python or machine leaves
    its module unimportable."""
    for name in names:
        for wheel in sorted(wheels.glob(f"{name}-*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(into)


def describe(project: Path, into: Path) -> None:
    """Write the metadata of one project, as an installer would: its name, its version and its entry points."""
    facts = project_facts(project / "pyproject.toml")
    folder = into / f"{facts['name'].replace('-', '_')}-{facts['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
    lines = []
    for group, points in facts.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def project_facts(path: Path) -> dict[str, Any]:
    """The table `project` of a pyproject.toml."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads(path.read_text())["project"])


def advice(missing: Sequence[str], wheels: Path) -> str:
    """How to get packages that are neither installed nor among the wheels."""
    lines = [
        f"{', '.join(missing)}: not installed, and {wheels} has no wheel that fits. On a machine with a network,",
        f"run  pip download --no-deps -d wheels {' '.join(missing)}",
        "in the checkout, and copy the checkout with its folder wheels to this machine (or use --wheels).",
    ]
    if compiled := [name for name in missing if name in COMPILED]:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        lines += [
            f"{', '.join(compiled)} is compiled, so its wheel has to fit this Python and machine. Add",
            f"    --only-binary=:all: --platform=manylinux2014_{os.uname().machine} --python-version={version}",
            "or install it from the system's packages (Debian's python3-psutil).",
        ]
    return "\n".join(lines)
