"""How a `LaunchConfig` and the environment determine the settings of a launch."""

from __future__ import annotations

import dataclasses
import signal
import sys

import pytest
from launching import HANDLED, config

from elastic_core import LaunchConfig, elastic_launch, metrics
from elastic_core.config import NodeRange
from elastic_core.errors import ConfigurationError, PluginError

pytestmark = pytest.mark.integration


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
        numa_options="node",
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


@pytest.mark.torch
def test_fields_have_the_installed_torchs_order():
    from torch.distributed.launcher.api import LaunchConfig as TorchsConfig

    ours, theirs = ([field.name for field in dataclasses.fields(kind)] for kind in (LaunchConfig, TorchsConfig))
    up_to = theirs.index("event_log_handler") + 1  # further ones were added in different orders
    assert ours[:up_to] == theirs[:up_to]


ENVIRON = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}


def test_torchs_variables_apply_to_fields_that_are_none():
    settings = LaunchConfig(1, 1, 1).settings(ENVIRON)
    assert (settings.shutdown_timeout, settings.log_line_prefix_template) == (7.0, "<${rank}>")
    settings = LaunchConfig(1, 1, 1, shutdown_timeout=4, log_line_prefix_template="[]").settings(ENVIRON)
    assert (settings.shutdown_timeout, settings.log_line_prefix_template) == (4.0, "[]")


def test_launch_reads_torchs_variables_and_names_them(monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(
        ConfigurationError, match=r"^TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected a number of seconds.*found 'soon'"
    ):
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


def test_environment_sets_options_without_a_field():
    settings = LaunchConfig(1, 1, 1).settings(WATCHING)
    assert (settings.watchdog, settings.watchdog_conf) == ("file", {"path": "/tmp/pipe"})
    assert (settings.health, settings.health_port, settings.health_conf) == ("http", 8080, {"host": "::"})
    assert (settings.hang_timeout, settings.hang_warmup, settings.hang_progress) == (5.0, 6.0, ("beat",))
    assert settings.kill_timeout == 8.0


def test_our_variables_take_precedence_over_torchs():
    off = {"ELASTIC_WATCHDOG": "none", "ELASTIC_HEALTH": "none", "ELASTIC_HEALTH_PORT": "9090"}
    settings = LaunchConfig(1, 1, 1).settings({**WATCHING, **off})
    assert (settings.watchdog, settings.health, settings.health_port) == (None, None, 9090)


def test_our_variables_do_not_override_fields():
    environ = {"ELASTIC_MAX_RESTARTS": "9", "ELASTIC_NNODES": "1:9", "ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert (LaunchConfig(1, 1, 1, run_id="job").settings(environ)) == LaunchConfig(1, 1, 1, run_id="job").settings()


@pytest.fixture
def silent_metrics():
    yield
    metrics.configure(metrics.NullMetricHandler())


def test_metrics_go_to_the_configured_handler(silent_metrics, capsys):
    assert elastic_launch(config(metrics_cfg={"destination": "console"}), "true")() == {0: None}
    metrics.put_metric("loss", 3)
    assert elastic_launch(config(metrics_cfg={}), "true")() == {0: None}  # keeps the handler
    metrics.put_metric("loss", 4)
    assert elastic_launch(config(metrics_cfg={"destination": "null"}), "true")() == {0: None}
    metrics.put_metric("loss", 5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("loss=")[1] for line in lines if " loss=" in line] == ["3", "4"]
    put = dict(line.split()[2].split("=") for line in lines)
    agent = ["SimpleElasticAgent.run", "SimpleElasticAgent._rendezvous", "LocalElasticAgent._start_workers"]
    assert [put[f"{name}.success"] for name in agent] == ["1", "1", "1"]
    assert [put[f"{name}.duration.ms"].isdigit() for name in agent] == [True, True, True]
    assert (put["workers.default_role.run_total"], put["workers.default_role.run_success_no_retries"]) == ("1", "1")


def test_unknown_metrics_handler_is_rejected():
    with pytest.raises(ConfigurationError, match="metrics_cfg: expected the destination null or console, found 'file'"):
        elastic_launch(config(metrics_cfg={"destination": "file"}), "true")()


def test_defaults_equal_torchs():
    settings = LaunchConfig(1, 1, 2).settings()
    assert (settings.max_restarts, settings.rdzv_backend, settings.role) == (3, "local", "default_role")
    assert settings.rdzv_id
    assert settings.signals_to_handle == HANDLED


def test_all_problems_are_reported_together():
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
from elastic_core.builtin import LocalRendezvousHandler
from elastic_core.plugin import Option, RendezvousBackendRecord, hookimpl

seen = []


def make(context, params):
    seen.append(params.config)
    return LocalRendezvousHandler(params.run_id)


@hookimpl
def elastic_rendezvous_backends():
    patient = (Option("join_timeout", float, 600.0, "how long", "seconds"),)
    torchs = (Option("timeout", float, 600.0, "how long", "seconds"),)
    return [
        RendezvousBackendRecord("patient", "has a join timeout", make, patient),
        RendezvousBackendRecord("torchs", "has a join timeout by torch's name", make, torchs),
        RendezvousBackendRecord("any", "takes what it is given", make, None),
        RendezvousBackendRecord("hasty", "has none", make),
    ]
"""


@pytest.fixture
def backends(put_on_path):
    """Return the parameters that the backends of an installed distribution received."""
    put_on_path("patience", {"elastic": ["patience = patience_plugin"]}, {"patience_plugin": BACKEND})
    return lambda: sys.modules["patience_plugin"].seen


@pytest.mark.parametrize(
    ("backend", "configs", "given"),
    [
        ("patient", {}, {"join_timeout": 90.0}),
        ("patient", {"join_timeout": 5}, {"join_timeout": 5.0}),
        ("patient", {"join-timeout": 5}, {"join_timeout": 5.0}),
        ("torchs", {}, {"timeout": 90.0}),
        ("torchs", {"timeout": 5}, {"timeout": 5.0}),
        ("any", {}, {"join_timeout": "90"}),
        ("hasty", {}, {}),
    ],
)
def test_timeout_is_passed_to_backends_that_have_one(backend, configs, given, backends):
    patient = config(rdzv_backend=backend, rdzv_configs=configs, rdzv_timeout=90)
    assert elastic_launch(patient, "true")() == {0: None}
    assert backends() == [given]


def test_without_a_timeout_the_backends_default_applies(backends):
    elastic_launch(config(rdzv_backend="patient"), "true")()
    assert backends() == [{"join_timeout": 600.0}]


def test_timeout_for_a_missing_backend_is_rejected():
    with pytest.raises(PluginError, match="no rendezvous backend named 'nobody' is installed"):
        elastic_launch(config(rdzv_backend="nobody", rdzv_timeout=90), "true")()
