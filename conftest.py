"""Fixtures and settings for all tests: tiers, logging, Hypothesis, ports and Ctrl-C.

Every test belongs to one of three tiers. A *unit* test must not start a process or open a network socket; one that does
fails. The marks `integration` and `nightly`, or a test's fixtures, select the other two tiers.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("hypothesis"):  # not installed for the tests of the packages
    from hypothesis import HealthCheck, settings

    # No deadline for examples, because a busy machine may stall at any time.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))  # for `warm`

TIERS = ("unit", "integration", "nightly")

FIXTURES = {"listener", "serve", "servers", "shared_servers", "shell", "spawn", "start_process", "warm"}
"""A test that uses one of these, directly or through another fixture, is an integration test unless it is marked
otherwise. pytest does not allow marks on fixtures, and many of the files with such tests have unit tests, too, which
would otherwise need a mark for each test. A file whose tests all start something has the mark instead."""


def tier(item):
    """The tier of a test, from its nearest mark or from its fixtures. `RoundPromises` tests open sockets, too."""
    marked = [mark.name for mark in item.iter_markers() if mark.name in TIERS]
    if marked:
        return "nightly" if "nightly" in marked else marked[0]
    starts = FIXTURES & set(item.fixturenames) or item.get_closest_marker("torch")
    return "integration" if starts or item.function.__qualname__.startswith("RoundPromises.") else "unit"


def pytest_collection_modifyitems(items):
    """Remove all tier marks except the one that applies, so that `-m` selects by it. Begin with the files that need
    torch, whose tests take longest: a long test that starts last delays the end."""
    tiers = [tier(item) for item in items]
    for item, own in zip(items, tiers, strict=True):
        for node in item.listchain():
            node.own_markers[:] = [mark for mark in node.own_markers if mark.name not in TIERS]
        item.add_marker(own)
    slow = {item.path for item in items if item.get_closest_marker("torch")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Exempt the thousands of test items, which live as long as this process, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def put_on_path(tmp_path, monkeypatch):
    """A function that makes a distribution and returns its folder, which is on sys.path.

    `entry_points` maps a group to its lines; `modules` maps module names to source text.
    """
    installed = []

    def put_on_path(name, entry_points, modules=None, version="1.0"):
        folder = tmp_path / f"site-{len(installed)}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        sections = [f"[{group}]\n" + "\n".join(lines) + "\n" for group, lines in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(sections))
        for module, source in (modules or {}).items():
            (folder / f"{module}.py").write_text(textwrap.dedent(source))
            installed.append(module)
        installed.append(None)
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield put_on_path
    for module in filter(None, installed):
        sys.modules.pop(module, None)


@pytest.fixture
def shell(tmp_path):
    """Runs the blocks of pages in the test's folder."""
    from blocks import Shell

    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def shown_warnings():
    """Send warnings to stderr, whatever an earlier test has configured, because many tests check them."""
    if find_spec("elastic_core"):  # not installed for the tests of the tools
        from elastic_core import log

        log.configure(level="warning")


class NotAUnitTest(BaseException):
    """A BaseException, so that the tested code does not handle it."""


class Watch:
    """Fails a unit test that starts a process or opens a network socket. Ignores threads that earlier tests have left
    running.

    It does not use an audit hook, which would run Python code while coverage installs its trace function in a new
    thread. If two threads do that at the same moment, CPython 3.11 ends one of them before it has started.
    """

    STARTS = ((subprocess.Popen, "__init__"), (os, "fork"), (os, "forkpty"), (os, "posix_spawn"), (os, "system"))
    OPENS = ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket.socket, "bind"))

    def __init__(self):
        self.seen = None  # forbidden calls of the running unit test; None outside unit tests
        self._others = set()
        for owner, name in self.STARTS:
            self._wrap(owner, name, lambda *_: True)
        for owner, name in self.OPENS:
            self._wrap(owner, name, lambda opened, *_: opened.family in (socket.AF_INET, socket.AF_INET6))

    def begin(self):
        self._others = set(sys._current_frames()) - {threading.get_ident()}
        self.seen = []

    def _wrap(self, owner, name, forbidden):
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args, **named):
            if self.seen is not None and threading.get_ident() not in self._others and forbidden(*args):
                self.seen.append(f"{owner.__name__}.{name}{args[-1:]}")
                raise NotAUnitTest(f"{self.seen[-1]}: mark the test with pytest.mark.integration")
            return function(*args, **named)

        setattr(owner, name, watched)


WATCH = Watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if item.get_closest_marker("unit"):
        WATCH.begin()
    try:
        return (yield)
    finally:
        WATCH.seen = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    try:
        return (yield)
    finally:
        assert not WATCH.seen, f"not a unit test: {WATCH.seen}"


@pytest.fixture(scope="session")
def warm():
    """A Python that has already imported torch and elastic-core."""
    from warm import WarmPython

    made = WarmPython()
    yield made
    made.close()


@pytest.fixture
def quiet_port():
    """A free port outside the kernel's ephemeral range, so that it is still free after a test has released it. Any free
    port if the range covers all ports."""
    from elastic_core.errors import ConfigurationError
    from elastic_core.support.sockets import PortReservation

    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(first - 12_000, 1024), first - 4_000)  # below the ports that torch uses by default
    for port in (*random.sample(below, len(below)), 0):
        with contextlib.suppress(ConfigurationError):
            reservation = PortReservation(port)
            reservation.release()
            return reservation.port
    raise AssertionError("no port is free")


@pytest.fixture
def background():
    from elastic_testing import Background

    return Background


@pytest.fixture
def eventually():
    from elastic_testing import eventually

    return eventually


@pytest.fixture
def listener():
    """The port of a socket that listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


@pytest.fixture
def interruptible():
    """Enable Ctrl-C even if a shell started this process in the background, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plugins():
    """A function that makes a plugin manager with the core's plugin and the given backend records."""
    from elastic_core import builtin
    from elastic_core.hooks.discovery import BUILTIN, CORE, Candidate, Source
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.plugin import hookimpl

    def plugins(*records):
        class Plugin:
            @hookimpl
            def elastic_rendezvous_backends(self):
                return list(records)

        toys = Candidate(Source("toys", "toy", "1.0"), "toys", Plugin)
        return PluginManager([Candidate(Source(CORE, "builtin", "1.0"), BUILTIN, lambda: builtin), toys])

    return plugins


@pytest.fixture
def memory_backend():
    from elastic_testing import StateOnlyBackend

    return StateOnlyBackend
