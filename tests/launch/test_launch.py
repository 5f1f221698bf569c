"""Launching from Python, with real processes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from elastic_testing import eventually
from launching import config, python

from elastic_core import ChildFailedError, SignalException, elastic_launch, launch_agent
from elastic_core.errors import ConfigurationError
from elastic_core.events import register_handler
from elastic_core.interfaces.health import HealthCheckServer

pytestmark = pytest.mark.integration

WORK = """
import os


def square(number):
    return int(os.environ["RANK"]), number * number


def fail_at_rank_1():
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has no square")


def use_gloo():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def fail_once():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise SystemExit(3)
    return os.environ["TORCHELASTIC_MAX_RESTARTS"]


class Refusing:
    def __reduce__(self):
        return int, ("no number",)


def refuse(times):
    return Refusing() if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < times else "given"
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module with functions that a new interpreter can import."""
    (tmp_path / "launched_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    import launched_work

    yield launched_work
    del sys.modules["launched_work"]


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("_", range(8))
def test_gloo_thread_does_not_abort_returned_function(work, _):
    """A gloo thread releases its last tensor shortly after the collective, which used to abort about half the jobs."""
    assert elastic_launch(config(4), work.use_gloo)() == dict.fromkeys(range(4), 4.0)


def test_launch_agent_returns_values_by_rank(work):
    assert launch_agent(config(2, start_method="forkserver"), work.square, [7]) == {0: (0, 49), 1: (1, 49)}


def test_raised_exception_becomes_the_failure(work):
    with pytest.raises(ChildFailedError) as failed:
        elastic_launch(config(2, start_method="fork"), work.fail_at_rank_1)()
    rank, first = failed.value.get_first_failure()
    assert (failed.value.name, rank, first.exitcode) == ("fail_at_rank_1", 1, 1)
    assert "ValueError: rank 1 has no square" in first.message
    assert pickle.loads(pickle.dumps(first)) == first


def test_failures_within_the_budget_are_forgiven(work):
    assert elastic_launch(config(max_restarts=2, start_method="fork"), work.fail_once)() == {0: "2"}


def test_return_value_that_cannot_be_read_is_a_failure(work):
    launch = elastic_launch(config(max_restarts=1), work.refuse)
    assert launch(1) == {0: "given"}
    with pytest.raises(ChildFailedError, match="its return value cannot be read: ValueError"):
        launch(2)


def test_command_runs(tmp_path):
    seen = tmp_path / "seen"
    command = f"echo $RANK $WORLD_SIZE $ROLE_NAME $0 > {seen}"
    assert elastic_launch(config(role="actor"), "sh")("-c", command, 5) == {0: None}
    assert seen.read_text().split() == ["0", "1", "actor", "5"]


def test_launch_leaves_a_registered_event_handler_open(work, tmp_path):
    class Handler(list):
        def __call__(self, event):
            self.append(event.name)

        def close(self):
            self.append("closed")

    handler = Handler()
    register_handler(str(tmp_path), handler)
    launch_agent(config(event_log_handler=str(tmp_path)), work.square, [7])
    assert handler
    assert "closed" not in handler


def test_launch_works_outside_the_main_thread(work):
    values = []
    thread = threading.Thread(target=lambda: values.append(elastic_launch(config(start_method="fork"), work.square)(2)))
    thread.start()
    thread.join(60)
    assert values == [{0: (0, 4)}]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_workers(signum, script):
    asks = script(f"import os, signal; os.kill(os.getppid(), {int(signum)}); signal.pause()")
    with pytest.raises(SignalException, match=f"stopped by {signum.name}") as left:
        python(asks)
    assert left.value.sigval is signum


def test_only_requested_signals_are_handled(script):
    received = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        assert python(script("import os; os.kill(os.getppid(), 1)"), signals_to_handle="SIGTERM") == {0: None}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGHUP]


def test_signal_after_success_changes_nothing(work):
    class Signaling(HealthCheckServer):
        def start(self):
            pass

        def stop(self):  # called last
            time.sleep(0.6)  # signals within half a second are one request
            signal.raise_signal(signal.SIGTERM)

    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        assert launch_agent(config(start_method="fork"), work.square, [3], Signaling()) == {0: (0, 9)}
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == []


def test_ignored_hangup_stays_ignored(script):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert python(script("import os; os.kill(os.getppid(), 1)")) == {0: None}
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("interruptible")
def test_unhandled_interrupt_stops_the_workers(script, tmp_path):
    noted = tmp_path / "pid"
    source = f"import os, signal; open({str(noted)!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), 2)"
    with pytest.raises(KeyboardInterrupt):
        python(script(f"{source}; signal.pause()"), signals_to_handle="SIGTERM")
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


INNER = [sys.executable, "-m", "elastic_core", "run", "--log-level=error"]


def test_nested_agent_passes_its_first_failure_to_the_outer_one(script):
    with pytest.raises(ChildFailedError) as failed:
        elastic_launch(config(), INNER[0])(*INNER[1:], script("import os; os.kill(os.getpid(), 9)"))
    _, first = failed.value.get_first_failure()
    assert first.exitcode == 1
    assert "killed by SIGKILL" in first.error_file_data["message"]["message"]


def test_error_file_of_the_inner_script_is_passed_on_unchanged(script):
    written = {
        "message": {"message": "the loss is no number", "extraInfo": {"py_callstack": "stack", "timestamp": "1"}}
    }
    source = (
        f"import json, os, sys; json.dump({written!r}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); sys.exit(1)"
    )
    with pytest.raises(ChildFailedError) as failed:
        elastic_launch(config(), INNER[0])(*INNER[1:], script(source))
    _, first = failed.value.get_first_failure()
    assert (first.error_file_data, first.message) == (written, "stack")


def test_unwritable_error_file_hides_no_failure(script, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no" / "such" / "folder.json"))
    with pytest.raises(ChildFailedError, match="exit code 3"):
        python(script("import sys; sys.exit(3)"))


def test_outermost_agent_replaces_its_error_file(script, monkeypatch, tmp_path):
    path = tmp_path / "error.json"
    path.write_text("x" * 10_000)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    begun = int(time.time())
    with pytest.raises(ChildFailedError):
        python(script("import sys; print('last words', file=sys.stderr); sys.exit(3)"))
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["extraInfo"]["py_callstack"]) == ("exit code 3", "last words")
    assert int(message["extraInfo"]["timestamp"]) >= begun


MAIN_FAILS = """
import sys

if __name__ == "__mp_main__":
    sys.exit(3)

from elastic_core import ChildFailedError, LaunchConfig, elastic_launch

def train(argument):
    pass

if __name__ == "__main__":
    try:
        config = LaunchConfig(1, 1, 1, max_restarts=0, start_method=sys.argv[1])
        elastic_launch(config, train)(b"x" * int(sys.argv[2]))
    except ChildFailedError as error:
        print(error.failures[0].exitcode)
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize(("argument", "variable"), [(1_000_000, 0), (0, 100_000)], ids=["argument", "environment"])
def test_worker_that_dies_before_it_reads_its_arguments_is_a_failure(tmp_path, start_method, argument, variable):
    """The agent once waited forever, because it still held the read end of the pipe to the dead worker."""
    script = tmp_path / "main.py"
    script.write_text(MAIN_FAILS)
    environment = {**os.environ, "LARGE": "x" * variable}
    done = subprocess.run(
        [sys.executable, script, start_method, str(argument)], env=environment, capture_output=True, timeout=100
    )
    assert done.stdout in (b"1\n", b"3\n")


def test_signal_to_the_process_group_does_not_end_the_fork_server(tmp_path):
    """All workers were once reported as failed, because the fork server had ended."""
    script = tmp_path / "script.py"
    script.write_text("import pathlib, signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"
                      "here = pathlib.Path(__file__).parent\n(here / 'runs').touch()\n"
                      "while not (here / 'go').exists():\n    time.sleep(0.05)\n")  # fmt: skip
    command = ("-m", "elastic_core", "run", "--run-path", "--start-method=forkserver", "--max-restarts=0", script)
    agent = subprocess.Popen([sys.executable, *command], start_new_session=True)
    try:
        eventually((tmp_path / "runs").exists)
        os.killpg(agent.pid, signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(0.5)
        (tmp_path / "go").touch()
        assert agent.wait(100) == 0
    finally:
        agent.kill()
        agent.wait()


TASTE = """
from elastic_core.plugin import Option, hookimpl

@hookimpl
def elastic_add_options():
    return [Option("taste", int, 1, "how sweet")]

@hookimpl
def elastic_contribute_environment(context):
    return {"TASTE": str(context.options["taste"])}
"""


def test_plugin_options_are_read_from_their_variables(put_on_path, monkeypatch):
    put_on_path("taste", {"elastic": ["taste = taste_of_a_plugin"]}, {"taste_of_a_plugin": TASTE})
    monkeypatch.setenv("ELASTIC_TASTE", "7")
    assert elastic_launch(config(), os.getenv)("TASTE") == {0: "7"}
    monkeypatch.setenv("ELASTIC_TASTE", "sour")
    with pytest.raises(ConfigurationError, match="ELASTIC_TASTE"):
        elastic_launch(config(), os.getenv)("TASTE")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a process id namespace")
def test_signal_ends_process_1_before_the_agent_is_ready(tmp_path):
    (tmp_path / "torch.py").write_text(f"import time\nopen({str(tmp_path / 'asked')!r}, 'w')\ntime.sleep(100)")
    run = [sys.executable, "-m", "elastic_core", "run", "--nproc-per-node=gpu", "--no-python", "true"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *run], env=environment) as container:
        eventually((tmp_path / "asked").exists)
        psutil.Process(container.pid).children()[0].send_signal(signal.SIGTERM)
        assert container.wait(60) == 128 + signal.SIGTERM
