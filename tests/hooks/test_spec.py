"""Every hookspec is documented, and its example is a working plugin."""

from __future__ import annotations

import inspect
import typing

import pytest
from hook_examples import example_of

from elastic_core.errors import ProcessFailure
from elastic_core.hooks import spec
from elastic_core.hooks.calls import Contexts, contributed_environment, hook_of, notifier
from elastic_core.hooks.manager import HOOKS, PluginManager
from elastic_core.hooks.records import KINDS
from elastic_core.interfaces.health import AgentPhase, Recovery
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import (
    AgentFinished,
    Fact,
    PhaseChanged,
    Recovered,
    RestartDecided,
    RoundFormed,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)

FAILURE = ProcessFailure(0, 17, -9, global_rank=3, node="node7", reason="killed by SIGKILL")
FACTS = {
    "round_formed": (RoundFormed("job", 1, 0, 2, 0.5, Round(1, ())), "round 1: node 0 of 2 after 0.5 s"),
    "workers_started": (WorkersStarted("job", 1, {0: 11, 1: 12}), "round 1 runs as 11 12"),
    "worker_failed": (WorkerFailed("job", FAILURE), "rank 3 on node7: killed by SIGKILL"),
    "restart_decided": (
        RestartDecided("job", 2, "failure", "rank 3 died", 1, 3),
        "failure: rank 3 died (1 of 3 restarts used)",
    ),
    "worker_exited": (WorkerExited("job", 1, 0, -9), "local rank 0: exit code -9"),
    "phase_changed": (PhaseChanged("job", AgentPhase.STOPPING, "rank 3 died", 7.0), "stopping: rank 3 died"),
    "recovered": (
        Recovered("job", "node7", Recovery(2, "failure", "rank 3 died", 1.7e9, 0.5, 1.0, 2.0, 3.0)),
        "node7 recovered from failure in 6.5 s",
    ),
    "agent_finished": (AgentFinished("job", "SUCCEEDED", "all done", 0), "job: SUCCEEDED (all done)"),
}


@pytest.fixture
def manager_of(install_plugin):
    """A function that installs and loads only the example of a hook."""

    def manager_of(hook):
        points = install_plugin("example", example_of(hook))
        manager = PluginManager.load({}, entry_points=points)
        assert manager.failures == ()
        assert [plugin.hooks for plugin in manager.plugins] == [(hook,)]
        return manager

    return manager_of


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_documents_its_calls_and_exceptions(hook):
    text = " ".join(inspect.getdoc(getattr(spec, hook)).split())
    for promise in ("Called once", "process", "thread", "An exception", "A complete plugin::"):
        assert promise in text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.hook)
def test_registration_hook_example_works(kind, manager_of):
    (provided,) = manager_of(kind.hook).records(kind)
    assert provided.record.summary
    assert provided.source.distribution == "example"


def test_added_options_example_works(manager_of):
    assert [option.name for option in manager_of("elastic_add_options").added_options()] == ["team"]


def test_contributed_environment_example_works(manager_of, plan):
    manager = manager_of("elastic_contribute_environment")
    assert contributed_environment(plan, Contexts(manager)) == {"WANDB_RUN_GROUP": "job-2"}


def test_every_fact_has_a_hook_of_its_name():
    assert {hook_of(fact) for fact in typing.get_args(Fact)} == {f"elastic_{name}" for name in FACTS} < set(HOOKS)


@pytest.mark.parametrize("name", FACTS)
def test_notification_hook_example_works(name, manager_of, capsys):
    fact, printed = FACTS[name]
    manager = manager_of(f"elastic_{name}")
    notifier(Contexts(manager))(fact)
    assert capsys.readouterr().out.strip() == printed
