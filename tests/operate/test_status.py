"""`elastic status` through a plugin's backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_testing import FakeClock

from elastic_core import cli
from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading, Sources, read_command
from elastic_core.errors import ConfigurationError, NotFoundError, RendezvousConnectionError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.operate.commands import BUILT_IN
from elastic_core.operate.status import NodeStanding, status
from elastic_core.plugin import BACKEND_OPTIONS


@pytest.fixture
def look(job, plugins):
    def look(backend, target=None, **more):
        record = RendezvousBackendRecord(
            "toy", "a test", print, options=BACKEND_OPTIONS, open_backend=lambda context, params: backend
        )
        return status(plan_of(Reading(target or job.target), plugins(record)), 60.0, **more)

    return look


def test_status_only_reads_and_closes_its_backend(job, look, fixed_backend):
    clock = FakeClock()
    entry = job.entry("a")
    backend = fixed_backend(*((job.state("a"), [job.announced(entry, beats)]) for beats in (1, 1, 2)))
    found = look(backend, clock=clock, pause=clock.advance)
    assert [view.standing for view in found.members] == [NodeStanding.RUNNING]
    assert found.job.now - found.job.since == pytest.approx(0.4)
    assert backend.closed


def test_unknown_job_is_an_error(look, fixed_backend):
    backend = fixed_backend((None, []))
    with pytest.raises(NotFoundError, match="no job with the id 'job' at here:1"):
        look(backend)
    assert backend.closed


def test_observation_uses_the_configured_interval(job, look, fixed_backend):
    clock = FakeClock()
    backend = fixed_backend((job.state("a"), [job.announced(job.entry("a"), 1)]))
    slow = replace(job.target, rdzv_conf={"keep_alive_interval": "10", "keep_alive_max_attempt": "3"})
    found = look(backend, slow, clock=clock, pause=clock.advance)
    assert 30 <= found.job.now - found.job.since <= 40


def test_backend_error_is_raised(look, fixed_backend):
    class Away(fixed_backend):
        def roster(self):
            raise RendezvousConnectionError("connecting to here:1 failed: refused")

    backend = Away((None, []))
    with pytest.raises(RendezvousConnectionError, match="refused"):
        look(backend)
    assert backend.closed


def test_backend_gets_parameters_of_the_job(job, plugins, fixed_backend):
    backend = fixed_backend((None, []))
    record = RendezvousBackendRecord(
        "toy", "a test", print, options=BACKEND_OPTIONS, open_backend=lambda context, params: backend
    )
    target = replace(job.target, rdzv_conf={"last-call-timeout": "2"})
    with plan_of(Reading(target), plugins(record)).opened(3.0) as (_, _, params):
        assert (params.backend, params.endpoint, params.run_id, params.node) == ("toy", "here:1", "job", None)
        assert (params.get("join_timeout"), params.get("last_call_timeout")) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rdzv_backend": "blind"}, r"'blind' cannot be observed; supported backends: toy"),
        ({"rdzv_backend": "tyo"}, "no rendezvous backend named 'tyo' is installed"),
        ({"rdzv_conf": {"volume": "1"}}, "volume"),
    ],
)
def test_unusable_backend_is_an_error(job, plugins, changes, message):
    blind = RendezvousBackendRecord("blind", "a test", print)
    seeing = RendezvousBackendRecord("toy", "a test", print, open_backend=print)
    plan = plan_of(Reading(replace(job.target, **changes)), plugins(blind, seeing))
    with pytest.raises(ConfigurationError, match=message), plan.checked().opened(1.0):
        pass


@pytest.fixture
def read(tmp_path):
    """A function that reads a command line as `elastic status` does, or another command."""

    def read(*words, command="status", manager=None, **environ):
        record = BUILT_IN[command]
        sources = Sources([*words, *["node0"] * len(record.operands)], environ, tmp_path, f"elastic {command}")
        return read_command(record, sources, backend_named=(manager or PluginManager.load({})).backend_named)

    return read


def test_missing_job_id_is_an_error_except_for_static(read):
    """With `static`, the job is identified by its address."""
    with pytest.raises(ConfigurationError, match="this command requires --rdzv-id=ID"):
        read("--rdzv-endpoint=node0")
    assert read("--rdzv-endpoint=node0", "--rdzv-backend=static").settings.rdzv_id == "none"
    assert read("--rdzv-endpoint=node0", "--rdzv-id=job").settings.rdzv_backend == "c10d"


@pytest.mark.parametrize("command", ["status", "drain", "stop"])
def test_static_job_is_found_by_the_address_of_rank_0(command, read):
    reading = read("--rdzv-backend=static", "--master-addr=node7", command=command, PET_MASTER_PORT="1234")
    assert reading.settings.rdzv_endpoint == "node7:1234"


def test_backend_supplies_the_default_endpoint(plugins, read):
    usual = RendezvousBackendRecord("toy", "a test", print, defaults=lambda _: {"rdzv_endpoint": ("here:1", "a test")})
    words = ["--rdzv-backend=toy", "--rdzv-id=job"]
    for written, meant in (("there:2", "there:2"), ("", "here:1")):
        found = read(*words, f"--rdzv-endpoint={written}", manager=plugins(usual))
        assert found.settings.rdzv_endpoint == meant
    with pytest.raises(ConfigurationError, match="--rdzv-endpoint: this command requires --rdzv-endpoint=HOST:PORT"):
        read(*words, manager=plugins(RendezvousBackendRecord("toy", "a test", print)))


ASKS_FOR_A_PASSWORD = """
from elastic_core.plugin import ConfigurationError, Option, Problem, RendezvousBackendRecord, hookimpl


def observe(context, params):
    context.log.warning("observed")
    found = context.options["toy-password"].title(), context.options["volume"], context.settings["rdzv_id"]
    raise ConfigurationError(Problem("toy", f"found {found}"))


@hookimpl
def elastic_add_options():
    return [Option("toy-password", str, None, "the password")]


@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("toy", "a test", print, (Option("volume", int, 3, ""),), open_backend=observe)]
"""


@pytest.mark.parametrize("words", [["status"], ["drain", "node7"], ["stop"]])
def test_backend_gets_context_and_log_as_in_a_run(put_on_path, monkeypatch, tmp_path, capsys, words):
    put_on_path("toys", {"elastic": ["toy = toys_plugin"]}, {"toys_plugin": ASKS_FOR_A_PASSWORD})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTIC_TOY_PASSWORD", "open sesame")
    assert cli.main([*words, "--rdzv-backend=toy", "--rdzv-endpoint=here:1", "--rdzv-id=job"]) == 2
    output = capsys.readouterr().err
    assert "toy: found ('Open Sesame', 3, 'job')" in output
    assert "plugin=toy" in output
    assert "Traceback" not in output
    monkeypatch.delenv("ELASTIC_TOY_PASSWORD")
    assert cli.main([*words, "--log-level=debug", "--rdzv-backend=toy", "--rdzv-endpoint=here:1", "--rdzv-id=job"]) == 2
    assert "Traceback" in capsys.readouterr().err
