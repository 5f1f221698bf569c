"""The wheels that users get, and environments to install them into."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # `version`
sys.path.append(str(ROOT / "tests" / "docs"))  # `blocks`

FOLDERS = {
    "elastic-core": ROOT,
    **{path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))},
}
PACKAGES = {name: name.replace("-", "_") for name in FOLDERS}
LIMIT_S = 60


def wheel_of(name, folder):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=FOLDERS[name], check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    (wheel,) = folder.glob(f"{PACKAGES[name]}-*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """By distribution: the wheels in the folder ELASTIC_TEST_WHEELS, else new ones built from the checkout."""
    ready = os.environ.get("ELASTIC_TEST_WHEELS")
    if ready:
        return {name: next(Path(ready).glob(f"{package}-*.whl")) for name, package in PACKAGES.items()}
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheels")
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FOLDERS, pool.map(wheel_of, FOLDERS, [folder] * len(FOLDERS)), strict=True))


@pytest.fixture(scope="session")
def third_party(tmp_path_factory):
    """A folder with links to the installed third-party packages, so that nothing large is installed twice."""
    folder = tmp_path_factory.mktemp("third-party")
    for place in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        for path in Path(place).iterdir():
            if not any(package in path.name for package in PACKAGES.values()):
                (folder / path.name).symlink_to(path)
    return folder


class Environment:
    """A fresh virtual environment with the third-party packages of this one, and none of elastic-core's."""

    def __init__(self, folder, third_party, wheels, shell):
        self.folder = folder
        self._shell = shell
        self._environ = {
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "",
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(next(iter(wheels.values())).parent),
        }  # fmt: skip
        venv.create(folder, with_pip=False)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "third_party.pth").write_text(f"import site; site.addsitedir({str(third_party)!r})\n")

    def run(self, *command, cwd=None, code=0, times=1):
        """Run one of its commands this many times in parallel; each must exit with this code. Returns the output of
        all."""
        words = shlex.join([str(self.folder / "bin" / command[0]), *command[1:]])
        return self._shell.run(f"cd '{cwd or self.folder}'\n{words}", times, code, **self._environ)

    def pip(self, *arguments):
        """Run pip. It finds only the wheels under test; a missing third-party package is an error."""
        return self.run("python", "-m", "pip", *arguments)


@pytest.fixture
def environment(tmp_path, third_party, wheels, shell):
    return Environment(tmp_path / "venv", third_party, wheels, shell)


@pytest.fixture(scope="session")
def checkout():
    """Each distribution's folder in the checkout."""
    return FOLDERS
