"""The wheels that users get, and environments to install them into."""

from __future__ import annotations

import os
import signal
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

    def __init__(self, folder, third_party, wheels):
        self.folder = folder
        self._links = next(iter(wheels.values())).parent
        venv.create(folder, with_pip=False)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "third_party.pth").write_text(f"import site; site.addsitedir({str(third_party)!r})\n")

    def start(self, *command, cwd, **environ):
        """Start one of its commands in `cwd`."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTIC_", "PET_", "PYTHON", "PIP_"))}
        environment = {
            **kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self._links),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "RES_OPTIONS": "timeout:1 attempts:1", **environ,
        }  # fmt: skip
        return subprocess.Popen(
            [self.folder / "bin" / command[0], *command[1:]], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *command, cwd=None, code=0, times=1, **environ):
        """Run the command this many times in parallel; each must exit with this code. Returns the output of all."""
        running = [self.start(*command, cwd=cwd or self.folder, **environ) for _ in range(times)]
        try:
            printed = [process.communicate(timeout=LIMIT_S)[0] for process in running]
        finally:
            for process in running:
                if process.poll() is None:  # it hung
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate(timeout=LIMIT_S)
        assert [process.returncode for process in running] == [code] * times, "\n".join(printed)
        return "".join(printed)

    def pip(self, *arguments):
        """Run pip. It finds only the wheels under test; a missing third-party package is an error."""
        return self.run("python", "-m", "pip", *arguments)


@pytest.fixture
def environment(tmp_path, third_party, wheels):
    return Environment(tmp_path / "venv", third_party, wheels)


@pytest.fixture(scope="session")
def checkout():
    """Each distribution's folder in the checkout."""
    return FOLDERS
