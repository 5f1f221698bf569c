"""The code blocks in the docs, and a shell that runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in (
        "README.md",
        "CONTRIBUTING.md",
        "design/*.md",
        "docs/**/*.md",
        "plugins/README.md",
        "plugins/*/README.md",
        "examples/*/README.md",
    )
    for path in ROOT.glob(pattern)
)
LIMIT_S = 120
FENCE = re.compile(r"^ *```")
IS_ITEM = re.compile(r" *([-*+]|\d+\.) ")
MOST_HELD = 20
_held = deque()


@dataclass(frozen=True)
class Block:
    page: str
    """Its path from the root."""
    line: int
    language: str
    """What stands behind the fence; `indented` for a block without one."""
    text: str

    @property
    def id(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, text):
    """Return the fenced blocks, and the blocks that are indented by four spaces and follow an empty line."""
    lines, number = text.splitlines(), 0
    while number < len(lines):
        start = number
        if FENCE.match(lines[number]):
            number = next(at for at in range(start + 1, len(lines)) if FENCE.match(lines[at]))
            yield Block(page, start + 1, lines[start].strip(" `"), joined(lines[start + 1 : number]))
        elif lines[number].startswith("    ") and not lines[number - 1].strip() and not IS_ITEM.match(lines[number]):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield Block(page, start + 1, "indented", joined(lines[start:number]).rstrip("\n") + "\n")
            continue
        number += 1


def joined(lines):
    return textwrap.dedent("".join(f"{line}\n" for line in lines))


def all_blocks():
    return [block for page in PAGES for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())]


def blocks_on(page, language):
    """Return the texts of a page's blocks in this language. `page` is the path from the root."""
    return [block.text for block in blocks_of(page, (ROOT / page).read_text()) if block.language == language]


def block_of(page, words):
    """Return the text of the only block on a page that contains these words. `page` is the path from the root."""
    found = [block.text for block in blocks_of(page, (ROOT / page).read_text()) if words in block.text]
    assert len(found) == 1, f"expected one block with {words!r} in {page}, found {len(found)}"
    return found[0]


def install(page, words, site):
    """Install a page's distribution into a folder: its `[project]` block, and the module that contains these words."""
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads(block_of(page, "[project]"))["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((name, module),) = project["entry-points"]["elastic"].items()
    (info / "entry_points.txt").write_text(f"[elastic]\n{name} = {module}\n")
    path = site / f"{module.replace('.', '/')}.py"
    path.parent.mkdir()
    path.write_text(block_of(page, words))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}


def free_port(with_next=False):
    """Return a port on which nothing listens. With `with_next`, nothing listens on the next port either. The ports stay
    reserved for a while: other programs do not get them from the kernel, but servers with SO_REUSEADDR can use them.
    """
    # Imported here, because the packages' tests run without the package.
    from elastic_core.errors import ConfigurationError
    from elastic_core.support.sockets import PortReservation

    for _ in range(MOST_HELD):
        _held.append(PortReservation())
        if with_next:
            try:
                _held.append(PortReservation(_held[-1].port + 1))
            except ConfigurationError:
                continue
        while len(_held) > MOST_HELD:
            _held.popleft().release()
        return _held[-1].port - with_next
    raise AssertionError("no two adjacent ports are free")


class Shell:
    """Runs blocks in a folder outside the checkout. `close` ends all programs that are still running. A guardian ends
    them if the test run is killed. Each block may take `limit_s` seconds."""

    def __init__(self, folder, limit_s=LIMIT_S):
        self.folder = folder
        self.limit_s = limit_s
        self._started = []
        self._guardian = None

    def start(self, script, **environ):
        """Start the block in the background, with both output streams in one file."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTIC_", "PET_", "TORCHELASTIC_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        said = self.folder / f"said{len(self._started)}"
        with open(said, "wb") as log:
            process = subprocess.Popen(
                ["sh", "-euc", script], cwd=self.folder, env={**kept, "PATH": path, **environ},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        self._guard(process.pid)
        return Started(process, said, self.limit_s)

    def _guard(self, pid):
        if find_spec("elastic_core"):  # the packaging tests run without elastic_core
            from elastic_core.workers.guardian import Guardian
            from elastic_core.workers.sessions import start_of

            self._guardian = self._guardian or Guardian()
            self._guardian.watch(pid, start_of(pid))

    def run(self, script, times=1, code=0, **environ):
        """Run the block `times` times in parallel, each with this exit code, and return the output of all runs."""
        started = [self.start(script, **environ) for _ in range(times)]
        return "".join(one.ended(code) for one in started)

    def close(self):
        try:
            for process in self._started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            for process in self._started:
                try:
                    process.wait(LIMIT_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(LIMIT_S)
        finally:
            if self._guardian is not None:
                self._guardian.close()  # ends what a block has left in the background


class Started:
    def __init__(self, process, said, limit_s):
        self.process = process
        self._said = said
        self._limit_s = limit_s

    @property
    def said(self):
        return self._said.read_text(errors="replace")

    def ended(self, code=0):
        """Wait until the program has ended with this exit code, and return its output."""
        assert self.process.wait(self._limit_s) == code, self.said
        return self.said

    def says(self, words):
        """Wait until the program prints this."""
        deadline = time.monotonic() + self._limit_s
        while True:
            has_ended = self.process.poll() is not None  # read first: the words may be the last ones
            if words in self.said:
                return
            assert not has_ended, self.said
            assert time.monotonic() < deadline, f"{words!r} in\n{self.said}"
            time.sleep(0.02)
