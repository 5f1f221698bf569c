"""`LocalElasticAgent` and its constructor. tests/e2e/programs/own_agent.py compares it with torch's."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import nullcontext

import psutil
import pytest
from elastic_testing import eventually
from launching import config

from elastic_core import elastic_launch, events
from elastic_core.agent import LocalElasticAgent, WorkerSpec, WorkerState
from elastic_core.errors import ConfigurationError, SignalException
from elastic_core.health import HealthCheckServer
from elastic_core.multiprocessing import DefaultLogsSpecs, Std
from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

pytestmark = pytest.mark.integration


class Pulse(HealthCheckServer):
    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


@pytest.fixture
def handler():
    made = get_rendezvous_handler(RendezvousParameters("local", "", "job", 1, 1))
    yield made
    made.shutdown()


def agent_for(handler, entrypoint, *args, specs=None, spec=None, **more):
    spec = WorkerSpec("trainer", 1, handler, entrypoint=entrypoint, args=args, max_restarts=0, **(spec or {}))
    return LocalElasticAgent(spec, specs or DefaultLogsSpecs(os.devnull), **more)


def test_command_runs_with_its_arguments(handler, tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    agent = agent_for(handler, "echo", "hello", 7, specs=specs, log_line_prefix_template="<${rank}>")
    result = agent.run()
    assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: None})
    (out,) = tmp_path.glob("job_*/attempt_0/0/stdout.log")
    assert out.read_text() == "hello 7\n"


def told(*args):
    return args


def test_local_rank_replaces_the_macro_in_a_functions_arguments(handler):
    assert agent_for(handler, told, "x${local_rank}", 3).run().return_values == {0: ("x0", 3)}


class Foreign:
    """A handler with torch's methods only, and no base class."""

    def __init__(self, handler):
        for name in ("get_backend", "get_run_id", "next_rendezvous", "num_nodes_waiting", "set_closed", "is_closed"):
            setattr(self, name, getattr(handler, name))


def test_handler_written_for_torch_is_accepted(handler):
    assert agent_for(Foreign(handler), "true").run().state is WorkerState.SUCCEEDED


class Adding(DefaultLogsSpecs):
    def reify(self, envs):
        for rank, variables in envs.items():
            variables["ADDED"] = f"for {rank}"
        return super().reify(envs)


def test_variables_of_the_logs_specs_are_set(handler):
    assert agent_for(handler, os.getenv, "ADDED", specs=Adding(os.devnull)).run().return_values == {0: "for 0"}


def test_disabled_health_check_ends_nothing(handler):
    assert agent_for(handler, "false", uninterruptible_state_timeout=-1).run().is_failed()


def test_programs_own_health_check_server_is_used(handler):
    pulse = Pulse()
    pulse.start()
    agent_for(handler, "true", health_check_server=pulse).run()
    assert pulse.calls == ["start", "stop"]


def test_launch_uses_the_programs_own_health_check_server():
    pulse = Pulse()
    pulse.start()
    assert elastic_launch(config(), "true", pulse)() == {0: None}
    assert pulse.calls == ["start", "stop"]


def test_launch_uses_the_programs_logs_specs(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    elastic_launch(config(logs_specs=specs, duplicate_stdout_filters=["b"]), "printf")("a\\nb\\n")
    (folder,) = tmp_path.glob("*/attempt_0")
    assert (folder / "0" / "stdout.log").read_text() == "a\nb\n"
    assert (folder / "filtered_stdout.log").read_text() == "[default_role0]:b\n"


def test_signals_are_handled_during_the_run(handler, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    agent = agent_for(handler, "sh", "-c", f"touch {tmp_path}/ready; sleep 300")

    def ask():
        eventually(lambda: (tmp_path / "ready").exists() and signal.getsignal(signal.SIGTERM) is not before)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(SignalException) as left:
        agent.run()
    asking.join()
    assert left.value.sigval is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert agent.get_worker_group().state is WorkerState.STOPPED


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["true"], None),
        (["false"], None),
        (["sh", "-c", "kill -TERM $PPID; sleep 300"], SignalException),
        (["/no/program"], ConfigurationError),
    ],
    ids=["succeeds", "fails", "is stopped", "cannot start"],
)
def test_no_end_of_a_run_leaves_a_process_or_a_folder(command, error, handler, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(psutil.Process().children(recursive=True))
    agent = agent_for(handler, *command, specs=DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ALL))
    with pytest.raises(error) if error else nullcontext():
        agent.run()
    assert set(psutil.Process().children(recursive=True)) == before
    assert [path.name for path in tmp_path.iterdir()] in ([], ["logs"])


def test_closing_an_agent_that_never_ran_leaves_nothing(handler):
    before = set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()
    agent = agent_for(handler, "true")
    agent.close()
    agent.close()
    assert (set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()) == before


def test_events_go_to_the_handler_in_the_spec(handler):
    told = []
    events.register_handler("of-the-agent", told.append)
    agent_for(handler, "true", spec={"event_log_handler": "of-the-agent"}).run()
    assert told


@pytest.mark.parametrize(
    ("entrypoint", "spec", "message"),
    [
        (None, {}, "expected a function or a command, found None"),
        ("true", {"numa_options": "everywhere"}, "numa_options: expected one of node, .* found 'everywhere'"),
        ("true", {"event_log_handler": "nobody"}, "'nobody'"),
    ],
)
def test_constructor_rejects_invalid_arguments(entrypoint, spec, message, handler):
    with pytest.raises(ConfigurationError, match=message):
        agent_for(handler, entrypoint, spec=spec)
