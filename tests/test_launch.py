"""Launching from Python, with real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time

import pytest

from elastic_core import ChildFailedError, LaunchConfig, SignalException, elastic_launch, launch_agent, metrics
from elastic_core.compose import Entry
from elastic_core.config import NodeRange
from elastic_core.errors import ConfigurationError, PluginError
from elastic_core.hooks.manager import PluginManager
from elastic_core.launch import run_job
from elastic_core.workers.starters import CommandStarter

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

WORK = """
import os


def square(number):
    return int(os.environ["RANK"]), number * number


def fail_at_rank_1():
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has no square")


def fail_once():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise SystemExit(3)
    return os.environ["TORCHELASTIC_MAX_RESTARTS"]
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module of functions that a new interpreter can import."""
    (tmp_path / "launched_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    import launched_work

    yield launched_work
    del sys.modules["launched_work"]


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def script(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return script


def config(nproc_per_node=1, **fields):
    return LaunchConfig(1, 1, nproc_per_node, **{"max_restarts": 0, **fields})


def python(path, **fields):
    return elastic_launch(config(**fields), sys.executable)(path)


@pytest.fixture(autouse=True)
def same_handlers():
    """No launch may leave a signal handler behind."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    yield
    assert [signal.getsignal(signum) for signum in HANDLED] == before


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_functions_return_values_by_rank(start_method, work):
    values = elastic_launch(config(2, start_method=start_method), work.square)(7)
    assert values == {0: (0, 49), 1: (1, 49)}


def test_launch_agent_takes_the_arguments_as_a_list(work):
    assert launch_agent(config(), work.square, [3]) == {0: (0, 9)}


def test_a_function_that_raises(work):
    with pytest.raises(ChildFailedError) as failed:
        elastic_launch(config(2, start_method="fork"), work.fail_at_rank_1)()
    rank, first = failed.value.get_first_failure()
    assert (failed.value.name, rank, first.exitcode) == ("fail_at_rank_1", 1, 1)
    assert "ValueError: rank 1 has no square" in first.message


def test_restarts_are_forgiven_within_the_budget(work):
    assert elastic_launch(config(max_restarts=2, start_method="fork"), work.fail_once)() == {0: "2"}


def test_a_function_that_cannot_be_pickled():
    with pytest.raises(ConfigurationError, match="expected a function and arguments that can be pickled"):
        elastic_launch(config(), lambda: None)()


def test_a_command(tmp_path):
    seen = tmp_path / "seen"
    command = f"echo $RANK $WORLD_SIZE $ROLE_NAME $0 > {seen}"
    assert elastic_launch(config(role="actor"), "sh")("-c", command, 5) == {0: None}
    assert seen.read_text().split() == ["0", "1", "actor", "5"]


def test_from_another_thread(work):
    values = []
    thread = threading.Thread(target=lambda: values.append(elastic_launch(config(start_method="fork"), work.square)(2)))
    thread.start()
    thread.join(60)
    assert values == [{0: (0, 4)}]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_workers(signum, script):
    asks = script(f"import os, signal; os.kill(os.getppid(), {int(signum)}); signal.pause()")
    with pytest.raises(SignalException, match=f"the agent received {signum.name}") as left:
        python(asks)
    assert left.value.sigval is signum


def test_only_the_signals_asked_for_are_handled(script):
    received = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        assert python(script("import os; os.kill(os.getppid(), 1)"), signals_to_handle="SIGTERM") == {0: None}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGHUP]


def test_a_hangup_that_was_ignored_stays_ignored(script):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        assert python(script("import os; os.kill(os.getppid(), 1)")) == {0: None}
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def interruptible():
    """Also where this process was started in the background, by a shell that has it ignore the keyboard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_is_not_handled_stops_the_workers_too(script, tmp_path):
    noted = tmp_path / "pid"
    source = f"import os, signal; open({str(noted)!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), 2)"
    with pytest.raises(KeyboardInterrupt):
        python(script(f"{source}; signal.pause()"), signals_to_handle="SIGTERM")
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


class InterruptedAtTheFork(CommandStarter):
    """To which Ctrl-C comes when its process has just started, and nobody else knows of it."""

    def start(self, launch):
        self.child = super().start(launch)
        signal.raise_signal(signal.SIGINT)
        return self.child


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_in_the_instant_in_which_a_worker_starts_stops_it_too():
    starter = InterruptedAtTheFork(("sleep", "600"))
    settings = config(signals_to_handle="SIGTERM").settings()
    with pytest.raises(KeyboardInterrupt):
        run_job(settings, Entry("sleep", starter), PluginManager.load({}), os.environ)
    with pytest.raises(ProcessLookupError):
        os.kill(starter.child.pid, 0)


INNER = [sys.executable, "-m", "elastic_core", "run", "--log-level=error"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_an_agent_inside_an_agent_hands_its_first_failure_up(source, message, script):
    with pytest.raises(ChildFailedError) as failed:
        elastic_launch(config(), INNER[0])(*INNER[1:], script(source))
    _, first = failed.value.get_first_failure()
    assert first.exitcode == 1
    assert message in first.error_file_data["message"]["message"]


def test_what_the_inner_script_wrote_is_handed_up_as_it_is(script):
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


def test_an_error_file_that_cannot_be_written_hides_no_failure(script, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no" / "such" / "folder.json"))
    with pytest.raises(ChildFailedError, match="exit code 3"):
        python(script("import sys; sys.exit(3)"))


@pytest.mark.parametrize("read", [False, True])
def test_an_error_file_that_is_a_pipe_holds_nobody_up(read, script, monkeypatch, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if read else None
    try:
        with pytest.raises(ChildFailedError, match="exit code 3"):
            python(script("import sys; sys.exit(3)"))
        assert reader is None or os.read(reader, 10) == b""
    finally:
        if reader is not None:
            os.close(reader)


def test_an_error_file_of_an_earlier_run_is_replaced(script, monkeypatch, tmp_path):
    path = tmp_path / "error.json"
    path.write_text("x" * 10_000)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(ChildFailedError):
        python(script("import sys; sys.exit(3)"))
    assert json.loads(path.read_text())["message"]["message"] == "exit code 3"


def test_the_error_file_of_an_agent_at_the_top(script, monkeypatch, tmp_path):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    begun = int(time.time())
    with pytest.raises(ChildFailedError):
        python(script("import sys; print('last words', file=sys.stderr); sys.exit(3)"))
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["extraInfo"]["py_callstack"]) == ("exit code 3", "last words")
    assert int(message["extraInfo"]["timestamp"]) >= begun


def test_failures_survive_pickling(script):
    with pytest.raises(ChildFailedError) as failed:
        python(script("import sys; sys.exit(3)"))
    first = failed.value.get_first_failure()[1]
    assert pickle.loads(pickle.dumps(first)) == first


def test_every_field_becomes_a_setting(tmp_path):
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=4,
        nproc_per_node="cpu",
        logs_specs="central",
        run_id="job",
        role="actor",
        rdzv_endpoint="host:29400",
        rdzv_backend="c10d",
        rdzv_configs={"store_type": "file", "read_timeout": 7},
        rdzv_timeout=100,
        max_restarts=5,
        monitor_interval=2.0,
        start_method="fork",
        log_line_prefix_template="<${rank}>",
        local_addr="10.0.0.7",
        event_log_handler="console",
        signals_to_handle="SIGTERM,SIGUSR1",
        duplicate_stdout_filters=["a,b", "c"],
        duplicate_stderr_filters=["d"],
        virtual_local_rank=True,
        shutdown_timeout=4.0,
        log_dir=str(tmp_path),
        redirects="1",
        tee="0:2",
        numa_binding="node",
    ).settings()
    assert (settings.nnodes, settings.nproc_per_node, settings.rdzv_id) == (NodeRange(1, 4), "cpu", "job")
    assert (settings.role, settings.rdzv_endpoint, settings.rdzv_backend) == ("actor", "host:29400", "c10d")
    assert dict(settings.rdzv_conf) == {"store_type": "file", "read_timeout": "7"}
    assert (settings.max_restarts, settings.monitor_interval, settings.start_method) == (5, 2.0, "fork")
    assert (settings.log_line_prefix_template, settings.local_addr) == ("<${rank}>", "10.0.0.7")
    assert settings.event_log_handler == "console"
    assert settings.signals_to_handle == (signal.SIGTERM, signal.SIGUSR1)
    assert settings.duplicate_stdout_filters == ("a,b", "c")
    assert settings.duplicate_stderr_filters == ("d",)
    assert (settings.virtual_local_rank, settings.shutdown_timeout, settings.log_dir) == (True, 4.0, tmp_path)
    assert (settings.redirects.for_rank(0), settings.tee.for_rank(0), settings.tee.for_rank(1)) == (1, 2, 0)
    assert (settings.numa_binding, settings.logs_specs) == ("node", "central")


TORCHS_ORDER = [
    "min_nodes",
    "max_nodes",
    "nproc_per_node",
    "logs_specs",
    "run_id",
    "role",
    "rdzv_endpoint",
    "rdzv_backend",
    "rdzv_configs",
    "rdzv_timeout",
    "max_restarts",
    "monitor_interval",
    "start_method",
    "log_line_prefix_template",
    "metrics_cfg",
    "local_addr",
    "event_log_handler",
]


def test_the_order_of_the_fields_is_torchs():
    assert [field.name for field in dataclasses.fields(LaunchConfig)][: len(TORCHS_ORDER)] == TORCHS_ORDER


@pytest.mark.torch
def test_the_order_of_the_fields_is_still_torchs():
    from torch.distributed.launcher.api import LaunchConfig as TorchsConfig

    theirs = [field.name for field in dataclasses.fields(TorchsConfig)]
    assert theirs[: len(TORCHS_ORDER)] == TORCHS_ORDER


ENVIRON = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}


def test_torchs_variables_count_where_a_field_is_none():
    settings = LaunchConfig(1, 1, 1).settings(ENVIRON)
    assert (settings.shutdown_timeout, settings.log_line_prefix_template) == (7.0, "<${rank}>")
    settings = LaunchConfig(1, 1, 1, shutdown_timeout=4, log_line_prefix_template="[]").settings(ENVIRON)
    assert (settings.shutdown_timeout, settings.log_line_prefix_template) == (4.0, "[]")


def test_a_launch_reads_torchs_variables_and_names_them(monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(ConfigurationError, match=r"^TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected seconds.*found 'soon'"):
        elastic_launch(config(), "true")()


WATCHING = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
    "ELASTIC_WATCHDOG_CONF": "path=/tmp/pipe",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "8080",
    "ELASTIC_HEALTH_CONF": "host=::",
    "ELASTIC_HANG_TIMEOUT": "5",
    "ELASTIC_HANG_WARMUP": "6",
    "ELASTIC_HANG_PROGRESS": "beat",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "8",
}


def test_the_environment_turns_on_what_has_no_field():
    settings = LaunchConfig(1, 1, 1).settings(WATCHING)
    assert (settings.watchdog, settings.watchdog_conf) == ("file", {"path": "/tmp/pipe"})
    assert (settings.health, settings.health_port, settings.health_conf) == ("http", 8080, {"host": "::"})
    assert (settings.hang_timeout, settings.hang_warmup, settings.hang_progress) == (5.0, 6.0, ("beat",))
    assert settings.kill_timeout == 8.0


def test_our_variables_go_before_torchs_as_on_the_command_line():
    off = {"ELASTIC_WATCHDOG": "none", "ELASTIC_HEALTH": "none", "ELASTIC_HEALTH_PORT": "9090"}
    settings = LaunchConfig(1, 1, 1).settings({**WATCHING, **off})
    assert (settings.watchdog, settings.health, settings.health_port) == (None, None, 9090)


def test_what_has_a_field_is_not_asked_of_our_variables():
    environ = {"ELASTIC_MAX_RESTARTS": "9", "ELASTIC_NNODES": "1:9", "ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert (LaunchConfig(1, 1, 1, run_id="job").settings(environ)) == LaunchConfig(1, 1, 1, run_id="job").settings()


def test_a_launch_with_torchs_switch_of_the_file_timer(script, monkeypatch):
    pytest.importorskip("elastic_file_timer")
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    path = script("""
import os, signal
from elastic_core.watchdog import expires
with expires(after=0.2 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 60):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        signal.pause()
""")
    assert python(path, max_restarts=1) == {0: None}
    with pytest.raises(ChildFailedError, match="timer"):
        python(path)


def test_a_launch_with_torchs_port_of_the_health_endpoint(script, monkeypatch):
    pytest.importorskip("elastic_http_health")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
    ask = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/livez', timeout=30)"
    assert python(script(ask)) == {0: None}


def test_a_launch_with_our_switch_of_hang_detection(script, monkeypatch):
    for name, value in {"TIMEOUT": "0.5", "WARMUP": "0", "PROGRESS": "beat"}.items():
        monkeypatch.setenv(f"ELASTIC_HANG_{name}", value)
    with pytest.raises(ChildFailedError, match="progress"):
        python(script("import signal; signal.pause()"))


@pytest.fixture
def silent_metrics():
    yield
    metrics.configure(metrics.NullMetricHandler())


def test_where_metrics_go(silent_metrics, capsys):
    assert elastic_launch(config(metrics_cfg={"destination": "console"}), "true")() == {0: None}
    metrics.put_metric("loss", 3)
    assert elastic_launch(config(), "true")() == {0: None}  # leaves it as it is
    metrics.put_metric("loss", 4)
    assert elastic_launch(config(metrics_cfg={}), "true")() == {0: None}
    metrics.put_metric("loss", 5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("loss=")[1] for line in lines if " loss=" in line] == ["3", "4"]
    put = dict(line.split()[2].split("=") for line in lines)
    agent = ["SimpleElasticAgent.run", "SimpleElasticAgent._rendezvous", "LocalElasticAgent._start_workers"]
    assert [put[f"{name}.success"] for name in agent] == ["1", "1", "1"]
    assert [put[f"{name}.duration.ms"].isdigit() for name in agent] == [True, True, True]
    assert (put["workers.default.run_total"], put["workers.default.run_success_no_retries"]) == ("1", "1")


def test_metrics_to_nowhere_we_know():
    with pytest.raises(ConfigurationError, match="metrics_cfg: expected the destination null or console, found 'file'"):
        elastic_launch(config(metrics_cfg={"destination": "file"}), "true")()


def test_the_defaults_are_torchs_where_torch_has_them():
    settings = LaunchConfig(1, 1, 2).settings()
    assert (settings.max_restarts, settings.rdzv_backend, settings.role) == (3, "local", "default")
    assert settings.rdzv_id
    assert settings.signals_to_handle == HANDLED


def test_all_that_is_wrong_is_said_at_once():
    wrong = LaunchConfig(4, 2, 0, max_restarts=-1, start_method="clone", signals_to_handle="SIGKILL")
    with pytest.raises(ConfigurationError) as refused:
        wrong.settings()
    assert {problem.origin for problem in refused.value.problems} == {
        "nnodes",
        "nproc_per_node",
        "max_restarts",
        "start_method",
        "signals_to_handle",
    }


BACKEND = """
from elastic_core.builtin.local import LocalRendezvousHandler
from elastic_core.hooks import Option, RendezvousBackendRecord, hookimpl

seen = []


def make(params):
    seen.append(params.config)
    return LocalRendezvousHandler(params.run_id)


@hookimpl
def elastic_rendezvous_backends():
    patient = (Option("join_timeout", float, 600.0, "how long", "seconds"),)
    return [
        RendezvousBackendRecord("patient", "has a join timeout", make, patient),
        RendezvousBackendRecord("any", "takes what it is given", make, None),
        RendezvousBackendRecord("hasty", "has none", make),
    ]
"""


@pytest.fixture
def backends(tmp_path, monkeypatch):
    """What the backends of an installed distribution were given."""
    info = tmp_path / "patience-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patience\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic]\npatience = patience_plugin\n")
    (tmp_path / "patience_plugin.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: sys.modules["patience_plugin"].seen
    sys.modules.pop("patience_plugin", None)


@pytest.mark.parametrize(
    ("backend", "configs", "given"),
    [
        ("patient", {}, {"join_timeout": 90.0}),
        ("patient", {"join_timeout": 5}, {"join_timeout": 5.0}),
        ("any", {}, {"join_timeout": "90"}),
        ("hasty", {}, {}),
    ],
)
def test_the_timeout_goes_to_backends_that_have_one(backend, configs, given, backends):
    patient = config(rdzv_backend=backend, rdzv_configs=configs, rdzv_timeout=90)
    assert elastic_launch(patient, "true")() == {0: None}
    assert backends() == [given]


def test_no_timeout_leaves_the_backends_own(backends):
    elastic_launch(config(rdzv_backend="patient"), "true")()
    assert backends() == [{"join_timeout": 600.0}]


def test_a_timeout_for_a_backend_that_is_not_there():
    with pytest.raises(PluginError, match="there is no rendezvous backend 'nobody' here"):
        elastic_launch(config(rdzv_backend="nobody", rdzv_timeout=90), "true")()


def test_a_program_that_is_not_there():
    with pytest.raises(ConfigurationError, match="expected a program that can be run"):
        elastic_launch(config(), "/nowhere/program")()
