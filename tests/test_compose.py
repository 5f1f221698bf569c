"""Composition with real plugins: what is built, in which order it starts and stops, and what is refused beforehand."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import tempfile
from importlib.metadata import EntryPoint

import pytest

from elastic_core import launch, log
from elastic_core.compose.agent import composed
from elastic_core.compose.plan import plan_of
from elastic_core.compose.policy import function_entry, script_entry, why_unbound
from elastic_core.config import Reading, settings_from
from elastic_core.config.spec import DEFAULT
from elastic_core.errors import ChildFailedError, ConfigurationError, PluginError, Problem
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.observer import WorkersStarted
from elastic_core.interfaces.workers import Expiry
from elastic_core.workers.numa import Cpu, Machine, read_machine

pytestmark = pytest.mark.integration

BUILTIN = EntryPoint("builtin", "elastic_core.builtin", "elastic")

PLUGIN = '''
"""Brings one of everything, and keeps a diary."""

from elastic_core.builtin import LocalRendezvousHandler
from elastic_core.plugin import (
    HealthEndpointRecord, Option, RendezvousBackendRecord, WatchdogRecord, WorkerStarterRecord, hookimpl
)
from elastic_core.interfaces.health import HealthCheckServer
from elastic_core.interfaces.workers import Watchdog
from elastic_core.workers.process import CommandStarter

diary = []
broken = {}
kept = {}


def step(what):
    diary.append(what)
    if what in broken:
        raise broken[what]


class Handler(LocalRendezvousHandler):
    def next_rendezvous(self):
        step("join")
        return super().next_rendezvous()

    def shutdown(self):
        step("handler.shutdown")
        return super().shutdown()


class Dog(Watchdog):
    def start(self, on_expiry):
        kept["on_expiry"] = on_expiry
        step("watchdog.start")

    def stop(self):
        step("watchdog.stop")

    def worker_environment(self):
        return {"DOG": "yes", "BOTH": "dog"}

    def round_started(self, workers):
        kept.setdefault("workers", []).append(workers)
        if "watchdog.round_started" in broken:
            raise broken["watchdog.round_started"]

    def fault(self):
        return "it sleeps"


class Health(HealthCheckServer):
    def __init__(self, view):
        self.view = view

    def start(self):
        kept["begun"] = (self.view.status(), self.view.watchdog_fault(), self.view.alive_at())
        self.end = self.view.subscribe(lambda: kept.setdefault("seen", []).append(self.view.status()))
        step("health.start")

    def stop(self):
        kept["ended"] = (self.view.status(), self.view.watchdog_fault(), self.view.alive_at())
        self.end()
        step("health.stop")


class Starter(CommandStarter):
    def close(self):
        step("starter.close")


def make_handler(context, params):
    kept["params"] = params
    step("handler")
    return Handler(params.run_id)


def make_watchdog(context):
    kept["watchdog"] = (context.run_id, dict(context.options))
    step("watchdog")
    return Dog()


def make_health(context, view, port, timeout):
    kept["health"] = (port, timeout, dict(context.options))
    step("health")
    return Health(view)


@hookimpl
def elastic_rendezvous_backends():
    rank = Option("rank", int, None, "the rank")
    return [
        RendezvousBackendRecord("diary", "a test", make_handler, (Option("depth", int, 3, "how deep"), rank)),
        RendezvousBackendRecord("anything", "takes any option", make_handler, None),
    ]


@hookimpl
def elastic_watchdogs():
    return [WatchdogRecord("dog", "a test", make_watchdog, (Option("after", float, 60.0, "idle time", "seconds"),))]


@hookimpl
def elastic_health_endpoints():
    return [HealthEndpointRecord("pulse", "a test", make_health, (Option("loud", bool, False, "whether"),))]


@hookimpl
def elastic_worker_starters():
    return [WorkerStarterRecord("keen", "a test", lambda context, work: Starter(work.command))]


@hookimpl
def elastic_add_options():
    return [Option("depth", int, 1, "how deep")]


@hookimpl
def elastic_contribute_environment(plan, context):
    return {"BOTH": "contributed", "ROUND_OF_PLUGIN": str(plan.round), "DEPTH": str(context.options.get("depth"))}


@hookimpl
def elastic_agent_finished(fact):
    step("finished " + fact.state)
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The plugin's module after a manager has loaded it."""
    (tmp_path / "diary_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [BUILTIN, EntryPoint("diary", "diary_plugin", "elastic")]
    manager = PluginManager.load({}, entry_points=points)
    assert manager.failures == ()
    module = sys.modules["diary_plugin"]
    module.manager = manager
    yield module
    del sys.modules["diary_plugin"]


ALL = {"rdzv_backend": "diary", "watchdog": "dog", "health": "pulse", "health_port": 8080, "rdzv_id": "job"}


def run(plugin, command=("true",), observers=(), options=None, environ=os.environ, **values):
    settings = settings_from({**ALL, "no_python": True, **values})
    entry = script_entry(settings, command[0], tuple(command[1:]), environ)
    plan = plan_of(Reading(settings, added=options), plugin.manager)
    return launch.run_job(plan.checked(), entry, environ, observers)


STARTED = ["health", "health.start", "handler", "watchdog", "watchdog.start"]
ENDED = ["watchdog.stop", "handler.shutdown", "health.stop"]


def test_plugins_start_before_joining_and_stop_in_reverse(plugin):
    assert not run(plugin).is_failed()
    assert plugin.diary == [*STARTED, "join", "finished SUCCEEDED", *ENDED]


def test_events_go_to_a_file(plugin, tmp_path):
    run(plugin, event_log_handler=f"file:{tmp_path / 'events'}")
    received = [json.loads(line)["name"] for line in (tmp_path / "events").read_text().splitlines()]
    assert received == ["round_formed", "workers_started", "agent_finished"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"worker_starter": "subproces"}, r"--worker-starter: .*did you mean 'subprocess'"),
        ({"worker_starter": "spawn"}, r"--worker-starter: expected a function to run, found a script or a command"),
        ({"worker_starter": "subprocess", "worker_starter_conf": {"x": "1"}}, r"--worker-starter-conf: x: unknown"),
        ({"rank_policy": "hots"}, r"--rank-policy: .*did you mean 'host'"),
        (
            {"rank_policy": "host", "nnodes": "1:2"},
            r"--rank-policy: rank policies do not apply to the backend 'diary'",
        ),
        ({"event_log_handler": "consle"}, r"--event-log-handler: .*did you mean 'console'"),
    ],
)
def test_invalid_plugin_choice_is_an_error(values, message, plugin):
    with pytest.raises(ConfigurationError, match=message):
        run(plugin, **values)
    assert not set(plugin.diary) - {*STARTED, *ENDED}


def test_factories_receive_their_options(plugin):
    run(
        plugin,
        rdzv_conf={"depth": "5"},
        watchdog_conf={"after": "2.5"},
        health_conf={"loud": "yes"},
        rdzv_endpoint="host:1",
        local_addr="10.0.0.1",
        nnodes="1:3",
        node_rank=2,
        options={"depth": 9},
    )
    params = plugin.kept["params"]
    assert (params.backend, params.endpoint, params.run_id) == ("diary", "host:1", "job")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (1, 3, "10.0.0.1")
    assert params.config == {"depth": 5, "rank": 2}
    assert plugin.kept["watchdog"] == ("job", {"after": 2.5, "depth": 9}), "with what the plugin added"
    assert plugin.kept["health"] == (8080, 30.0, {"loud": True, "depth": 9})


def test_health_endpoint_sees_the_whole_run(plugin):
    with pytest.raises(ChildFailedError):
        run(plugin, ("sh", "-c", "exit $((3 + TORCHELASTIC_RESTART_COUNT))"), max_restarts=1, node_id="node7")
    status, fault, alive_at = plugin.kept["begun"]
    assert (status.run_id, status.node, status.role, status.max_restarts) == ("job", "node7", "default", 1)
    assert (status.phase, status.reason) == (AgentPhase.JOINING, "not started yet")
    assert (fault, alive_at > 1_700_000_000) == ("", True)
    status, fault, alive_at = plugin.kept["ended"]
    assert (status.phase, status.reason) == (AgentPhase.FINISHED, status.rounds[-1].ended_because)
    assert [(each.cause, each.ended_because) for each in status.rounds] == [
        ("failure", "rank 0: exit code 3; restart 1 of 1"),
        ("failed", "rank 0: exit code 4; the only restart has been used (--max-restarts=1)"),
    ]
    assert [worker.state for worker in status.workers] == ["failed"]
    assert (status.restarts, status.last_failure.exitcode) == ((("failure", 1),), 4)
    assert [(each.round, each.cause) for each in status.recoveries] == [(2, "failure")]
    assert 0 < status.recoveries[0].total < 30
    assert (fault, alive_at > 1_700_000_000) == ("it sleeps", True)
    seen = plugin.kept["seen"]
    assert [each.version for each in seen] == list(range(2, status.version + 1))
    assert len({worker.pid for each in seen for worker in each.workers}) == 2


def test_backend_without_declared_options_gets_all(plugin):
    run(plugin, rdzv_backend="anything", rdzv_conf={"whatever": "1", "endpoint": "e", "node": "n", "run_id": "r"})
    params = plugin.kept["params"]
    assert (params.run_id, params.get("node"), params.get("run_id")) == ("job", "n", "r")
    assert params.config == {"whatever": "1", "endpoint": "e", "node": "n", "run_id": "r"}


def test_only_requested_plugins_are_built(plugin):
    run(plugin, watchdog=None, health=None, health_port=None)
    assert plugin.diary == ["handler", "join", "finished SUCCEEDED", "handler.shutdown"]


def test_plugins_contribute_worker_variables(plugin, tmp_path):
    seen = tmp_path / "seen"
    script = f"echo $DOG $BOTH $ROUND_OF_PLUGIN $DEPTH $TORCHELASTIC_RUN_ID > {seen}"
    run(plugin, ("sh", "-c", script), options={"depth": 9})
    assert seen.read_text().split() == ["yes", "dog", "1", "9", "job"]


def test_watchdog_can_end_a_worker(plugin):
    def hound(fact):
        if isinstance(fact, WorkersStarted):
            plugin.kept["on_expiry"](Expiry(fact.pids[0], "step"))

    with pytest.raises(ChildFailedError, match="hang: the watchdog timer 'step' was not released"):
        run(plugin, ("sleep", "600"), observers=(hound,))


def test_watchdog_gets_the_workers_of_each_round(plugin, tmp_path):
    script = f"""
echo $RANK $$; there={tmp_path}/$TORCHELASTIC_RESTART_COUNT; : > $there-$RANK
until [ -e $there-0 ] && [ -e $there-1 ]; do sleep 0.01; done
exit $((1 - TORCHELASTIC_RESTART_COUNT))"""
    run(plugin, ("sh", "-c", script), nproc_per_node="2", max_restarts=1, redirects="0:3,1:1", log_dir=tmp_path)
    assert [len(workers) for workers in plugin.kept["workers"]] == [2, 2]
    for number, (one, two) in enumerate(plugin.kept["workers"], 1):
        folder = tmp_path / "job" / f"round-{number}"
        assert (one.logs, two.logs) == ((folder / "rank-0.out", folder / "rank-0.err"), (folder / "rank-1.out",))
        assert (one.local_rank, two.local_rank, one.global_rank, two.global_rank) == (0, 1, 0, 1)
        assert [worker.logs[0].read_text() for worker in (one, two)] == [f"0 {one.pid}\n", f"1 {two.pid}\n"]


def test_watchdog_gets_no_log_paths_without_log_files(plugin):
    run(plugin)
    ((worker,),) = plugin.kept["workers"]
    assert worker.logs == ()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit("no")])
def test_watchdog_error_does_not_end_the_job(plugin, capsys, error):
    plugin.broken["watchdog.round_started"] = error
    assert not run(plugin).is_failed()
    said = capsys.readouterr().err
    reason = f"its round_started raised {type(error).__name__}: no"
    assert f'plugin failed: part="watchdog dog" reason="{reason}"' in said


@pytest.mark.parametrize(
    ("where", "diary"),
    [
        ("health", ["health"]),
        ("health.start", ["health", "health.start", "health.stop"]),
        ("handler", [*STARTED[:3], "health.stop"]),
        ("watchdog", [*STARTED[:4], "handler.shutdown", "health.stop"]),
        ("watchdog.start", [*STARTED, *ENDED]),
        ("join", [*STARTED, "join", "finished FAILED", *ENDED]),
    ],
)
def test_built_parts_are_stopped_after_an_error(where, diary, plugin):
    plugin.broken[where] = RuntimeError("no")
    with pytest.raises((RuntimeError, PluginError), match="no") as raised:
        run(plugin)
    assert plugin.diary == diary
    assert isinstance(raised.value, PluginError) == (where != "join")


@pytest.mark.parametrize("error", [RuntimeError("it broke"), SystemExit(0)])
def test_errors_while_stopping_do_not_change_the_outcome(plugin, capsys, error):
    plugin.broken.update(dict.fromkeys([*ENDED, "starter.close"], error))
    with pytest.raises(ChildFailedError, match="exit code 3"):
        run(plugin, ("sh", "-c", "exit 3"), worker_starter="keen")
    assert [step for step in plugin.diary if step in ENDED] == ENDED
    said = capsys.readouterr().err
    assert 'plugin failed: part="worker starter" reason="close raised ' in said
    for part in ("watchdog dog", "rendezvous backend diary", "health endpoint pulse"):
        assert f'plugin failed: part="{part}" reason="stopping it raised ' in said


@pytest.mark.parametrize("error", [RuntimeError("cannot bear it"), SystemExit(0)])
def test_observer_error_does_not_end_the_job(plugin, capsys, error):
    def broken(fact):
        raise error

    assert not run(plugin, observers=(broken,)).is_failed()
    assert "plugin failed: part=observer fact=RoundFormed" in capsys.readouterr().err


def test_taken_health_port_is_an_error(plugin):
    plugin.broken["health.start"] = OSError(98, "Address already in use")
    with pytest.raises(ConfigurationError) as refused:
        run(plugin)
    assert str(refused.value) == (
        "--health-port: the health endpoint 'pulse' cannot use port 8080: Address already in use; choose another port"
    )


def test_all_problems_are_reported_before_anything_is_built(plugin):
    with pytest.raises(ConfigurationError) as refused:
        run(
            plugin,
            rdzv_conf={"depht": "1"},
            watchdog="cat",
            health_conf={"loud": "perhaps"},
            event_log_handler="nowhere",
        )
    assert [problem.origin for problem in refused.value.problems] == [
        "--rdzv-conf: depht",
        "--watchdog",
        "--health-conf: loud",
        "--event-log-handler",
    ]
    assert plugin.diary == []


ASKED = {
    "watchdog": ("file", "TORCHELASTIC_ENABLE_FILE_TIMER", "elastic-file-timer"),
    "health": ("http", "TORCHELASTIC_HEALTH_CHECK_PORT", "elastic-http-health"),
}


@pytest.mark.parametrize("setting", ASKED)
def test_missing_plugin_for_torchrun_variable_is_a_warning(setting, capsys):
    """torchrun needs no plugin for it, so its variables may be set on any machine."""
    name, variable, distribution = ASKED[setting]
    nobody = PluginManager.load({}, entry_points=())
    settings = settings_from({setting: name, "health_port": 8080})

    def planned(manager, origin):
        return plan_of(Reading(settings, origins={setting: origin}), manager).settings

    assert getattr(planned(nobody, variable), setting) is None
    assert f'plugin missing: variable={variable} advice="pip install {distribution}"' in capsys.readouterr().err
    assert planned(nobody, f"--{setting}") == settings
    assert planned(PluginManager.load({}), variable) == settings
    assert planned(PluginManager.load({"ELASTIC_DISABLE_PLUGINS": distribution}), variable) == settings


def test_single_error_keeps_its_type(plugin):
    with pytest.raises(PluginError, match="no rendezvous backend named 'nobody' is installed"):
        run(plugin, rdzv_backend="nobody")


def test_agent_that_never_runs_leaks_nothing(plugin):
    settings = settings_from({**ALL, "no_python": True})
    entry = script_entry(settings, "true", (), os.environ)
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        plugin.diary.clear()
        with composed(plan_of(Reading(settings), plugin.manager).checked(), entry, os.environ) as agent:
            assert agent.restart_count == 0
        assert plugin.diary == [*STARTED, *ENDED]
    # Threads of earlier tests may open and close a few; a leak would be a hundred.
    assert len(os.listdir("/proc/self/fd")) < descriptors + 50


@pytest.fixture
def words(tmp_path):
    """A program that records its arguments, and a function that returns them."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0" "$@" > {tmp_path}/words\n')
    program.chmod(0o755)
    return str(program), lambda: (tmp_path / "words").read_text().split()


@pytest.mark.parametrize(
    ("values", "started_with"),
    [
        ({"no_python": False}, ["-u", "train.py", "--lr=1"]),
        ({"no_python": False, "module": True}, ["-u", "-m", "train.py", "--lr=1"]),
    ],
)
def test_python_exec_selects_the_interpreter(values, started_with, plugin, words):
    program, noted = words
    run(plugin, ("train.py", "--lr=1"), environ={**os.environ, "PYTHON_EXEC": program}, **values)
    assert noted() == [program, *started_with]


def test_command_needs_no_interpreter(plugin, words):
    program, noted = words
    run(plugin, (program, "--lr=1"), environ={**os.environ, "PYTHON_EXEC": "/nowhere/python"})
    assert noted() == [program, "--lr=1"]


@pytest.mark.parametrize("environ", [{}, {"PYTHON_EXEC": ""}])
@pytest.mark.parametrize("values", [{"no_python": False}, {"run_path": True}])
def test_scripts_default_to_this_interpreter(values, environ, plugin, tmp_path):
    script, seen = tmp_path / "train.py", tmp_path / "seen"
    script.write_text(f"import sys\nopen({str(seen)!r}, 'w').write(' '.join([sys.executable, __name__, *sys.argv]))")
    run(plugin, (str(script), "--lr=1"), environ={**os.environ, **environ}, **values)
    assert seen.read_text().split() == [sys.executable, "__main__", str(script), "--lr=1"]


def test_entry_points_are_named():
    assert function_entry(os.getcwd, ()).name == "getcwd"
    assert function_entry(functools.partial(print, 1), ()).name.startswith("functools.partial(")
    assert script_entry(settings_from({"run_path": True}), "train.py", (), {}).name == "train.py"


@pytest.mark.parametrize("values", [{"tee": "1"}, {"redirects": "0:3"}, {"duplicate_stdout_filters": ["x"]}])
def test_temporary_log_folder_is_logged(values, plugin, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    log.configure(level="info")
    try:
        run(plugin, ("sh", "-c", "echo x"), **values)
    finally:
        log.configure(level="warning")
    (folder,) = tmp_path.glob("elastic-logs-*")
    assert any(path.is_file() for path in folder.rglob("*"))
    assert f"log directory created: path={folder}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        ({"logs_specs": "nobody"}, None),
        ({"redirects": "3"}, "watchdog"),
        ({"redirects": "3"}, "join"),
    ],
)
def test_empty_temporary_log_folder_is_removed(values, broken, plugin, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    if broken:
        plugin.broken[broken] = RuntimeError("no")
    with pytest.raises((RuntimeError, PluginError)):
        run(plugin, **values)
    assert not list(tmp_path.glob("elastic-logs-*"))


@pytest.fixture
def one_processor():
    """Restricts this process and its children to one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_impossible_numa_binding_is_a_warning(plugin, capsys, one_processor):
    """If the kernel reports no layout, no worker is bound; otherwise one of the two gets the only core."""
    assert not run(plugin, numa_binding="exclusive", nproc_per_node=2).is_failed()
    said = capsys.readouterr().err
    assert "numa binding skipped: mode=exclusive local_ranks=" in said
    reason = "has fewer usable cores than workers" if read_machine().cpus else "the kernel does not show"
    assert reason in said


TWO_NODES = tuple(Cpu(number, node=number // 4, socket=0, core=number // 2, cache=0) for number in range(8))


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (Machine(), "the kernel does not report the NUMA layout of the CPUs"),
        (Machine(TWO_NODES, (0, 7)), "the NUMA node of the worker's device is unknown"),
        (Machine(TWO_NODES, (0, 1)), "NUMA node 1 has fewer usable cores than workers"),
    ],
)
def test_unbound_reason_names_the_cause(machine, reason):
    assert why_unbound(machine, 1, 2).startswith(reason)


def test_factory_problems_name_their_origin():
    origins = {"rdzv_conf": "elastic.toml: rendezvous.etcd", "rdzv_endpoint": DEFAULT, "dataset": "ELASTIC_DATASET"}
    plan = plan_of(Reading(settings_from({}), origins=origins), PluginManager.load({}))
    with pytest.raises(ConfigurationError) as caught, plan.naming_origins():
        raise ConfigurationError(
            Problem("--rdzv-conf: lease_ttl", "too short"),
            Problem("--rdzv-endpoint", "none"),
            Problem("--dataset", "none"),
            Problem("x", "y"),
        )
    assert [problem.origin for problem in caught.value.problems] == [
        "elastic.toml: rendezvous.etcd: lease_ttl",
        "--rdzv-endpoint",
        "ELASTIC_DATASET",
        "x",
    ]


STARTER = """
from elastic_core.plugin import WorkerStarterRecord, hookimpl

class Starter:
    def start(self, launch):
        raise {error}

@hookimpl
def elastic_worker_starters():
    return [
        WorkerStarterRecord("broken", "a test", lambda context, work: Starter()),
        WorkerStarterRecord("nothing", "a test", lambda context, work: None),
    ]
"""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("broken", "RuntimeError('no place')", r"'broken' of .* failed: RuntimeError: no place"),
        ("broken", "SystemExit(3)", r"'broken' of .* failed: SystemExit: 3"),
        ("nothing", "OSError", r"'nothing' of .*its factory must return an object with start\(\), but returned None"),
    ],
)
def test_failed_starter_is_named(name, error, message, plugin, tmp_path, monkeypatch):
    (tmp_path / "starter_plugin.py").write_text(STARTER.format(error=error))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "starter_plugin", raising=False)
    diary, starter = (EntryPoint(it, f"{it}_plugin", "elastic") for it in ("diary", "starter"))
    points = [BUILTIN, diary, starter]
    settings = settings_from({**ALL, "no_python": True, "worker_starter": name})
    entry = script_entry(settings, "true", (), os.environ)
    plan = plan_of(Reading(settings), PluginManager.load({}, entry_points=points))
    with pytest.raises(PluginError, match=message):
        launch.run_job(plan.checked(), entry, os.environ)
