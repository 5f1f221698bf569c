"""Commands as workers."""

from __future__ import annotations

import os
import sys

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.workers import Launch
from elastic_core.workers.process import CommandStarter

pytestmark = pytest.mark.integration


@pytest.fixture
def launch(tmp_path):
    with open(os.devnull) as mark:

        def launch(local_rank=0, environment=None, stdout=None, stderr=None, **more):
            given = dict(os.environ) if environment is None else environment
            return Launch(local_rank, given, stdout, stderr, tmp_path / "result", mark.fileno(), **more)

        yield launch


def finish(child):
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def test_command_runs_in_its_own_session(launch, pipe, lines_of, until):
    code = "import os, sys; print(os.getsid(0) == os.getpid(), sys.argv[1], os.environ['A']); sys.exit(3)"
    starter = CommandStarter((sys.executable, "-S", "-c", code, "rank-${local_rank}"))
    child = starter.start(launch(12, {"A": "b"}, stdout=pipe[1]))
    assert lines_of(pipe[0]) == ["True rank-12 b"]
    assert until(lambda: child.poll() is not None)
    assert child.poll() == 3
    assert child.own_sentinel() is None
    assert starter.result(launch()) is None


def test_command_is_looked_up_in_the_workers_path(launch, tmp_path, until):
    (tmp_path / "tool").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "tool").chmod(0o755)
    child = CommandStarter(("tool",)).start(launch(environment={"PATH": str(tmp_path)}))
    assert until(lambda: child.poll() is not None)
    assert child.poll() == 5


def test_command_that_cannot_run_is_a_configuration_error(launch, tmp_path):
    (tmp_path / "noexec").write_text("text")
    (tmp_path / "nosense").write_text("#!/no/such/interpreter\n")
    (tmp_path / "nosense").chmod(0o755)
    for name in ("missing", "noexec", "nosense"):
        with pytest.raises(ConfigurationError, match=rf"entry point: .*{name}.* cannot.*check the path"):
            CommandStarter((str(tmp_path / name),)).start(launch())


def test_overlong_command_line_is_a_configuration_error(launch):
    with pytest.raises(ConfigurationError, match="too long"):
        CommandStarter((sys.executable, "x" * 10_000_000)).start(launch())
