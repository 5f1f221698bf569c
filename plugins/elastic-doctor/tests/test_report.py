"""The whole examination over toy backends, and its reports."""

from __future__ import annotations

import json
import re
import socket
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from elastic_doctor.examine import in_order, of_checks, of_plan
from elastic_doctor.finding import Check, as_dict, as_text, fault, level_of, note, ok, warning
from elastic_doctor.options import DoctorOptions
from elastic_doctor.store import Answered, StoreCheck, judged_store
from elastic_testing import FakeClock

from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading, settings_from
from elastic_core.errors import RendezvousConnectionError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.interfaces.backend import StoreServer
from elastic_core.plugin import BACKEND_OPTIONS, CheckMoment, SystemClock
from elastic_core.rendezvous.codec import encoded_state
from elastic_core.rendezvous.model import RoundId, State, closed
from elastic_core.rendezvous.store_backend import with_roster

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "doctor.md"
SETTINGS = settings_from({"nnodes": "2:4", "rdzv_endpoint": "h:1", "rdzv_id": "job"})


def documented(text):
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([\w-]+)`", row)}


def test_text_report_lists_findings_and_a_summary():
    found = [ok(Check.NAME, "h is 10.0.0.1"), warning(Check.PORT, "it is slow", "make it fast")]
    assert as_text("node0", SETTINGS, found) == (
        "node0: a run with c10d at h:1, nodes 2:4\n"
        "\n"
        "ok       name  h is 10.0.0.1\n"
        "warning  port  it is slow\n"
        "               -> make it fast\n"
        "\n"
        "1 warning, no faults\n"
    )
    assert as_text("n", SETTINGS, [*found, fault(Check.PORT, "x", "y")]).endswith(
        "\n1 fault, 1 warning: the run would fail\n"
    )
    assert as_text("n", SETTINGS, [note(Check.PORT, "x")]).endswith("\nno problems found\n")


def test_json_fields_match_the_reference():
    said = (Check.NAME, "it is said")
    content = as_dict("node0", SETTINGS, [fault(Check.STORE, "none", "start it")])
    assert json.loads(json.dumps(content)) == content
    assert (content["version"], content["exit_code"], content["max_nodes"]) == (1, 4, 4)
    fields, findings, levels, checks = re.split(r"\nA finding:\n|\n\| level |\n\| check ", REFERENCE.read_text())
    assert documented(fields) == set(content)
    assert documented(findings) == set(content["findings"][0])
    assert documented(levels) == {
        level_of(item) for item in [ok(*said), note(*said), warning(*said, ""), fault(*said, "")]
    }
    assert documented(checks) == {check.value for check in Check}


def test_store_answers_are_judged():
    def levels(answered):
        return [level_of(item) for item in judged_store(answered, "job")]

    assert levels(Answered((0.001,) * 10)) == ["ok", "ok"]
    assert levels(Answered((0.001, 0.5))) == ["warning", "ok"]
    assert levels(Answered((0.001,), State(round=RoundId(2)))) == ["ok", "note"]
    assert levels(Answered((0.001,), closed(State(), "a", "over", True))) == ["ok", "fault"]
    assert levels(Answered((0.001,), unreadable="version 9")) == ["ok", "fault"]


@pytest.fixture
def examine(plugins):
    """A function that examines a run with the toy backend, and returns level and message by check. Unless it waits for
    peers, its clock stands still, so that nothing is reported as slow."""

    def examine(opened, doctor_options=None, serve=None, **values):
        record = RendezvousBackendRecord(
            "toy",
            "a test",
            print,
            options=BACKEND_OPTIONS,
            open_backend=opened and (lambda context, params: opened(params)),
            serve=serve,
            hosted=serve is not None,
        )
        settings = settings_from({"rdzv_backend": "toy", "rdzv_endpoint": "/f.db", "rdzv_id": "job", **values})
        doctor_options = doctor_options or DoctorOptions(timeout=60.0)
        clock = SystemClock() if doctor_options.peers else FakeClock()
        plan = plan_of(Reading(settings), plugins(record))
        findings = in_order([*of_plan(plan, None), *StoreCheck(plan, doctor_options, clock).results()])
        wrong = {item.name for item in findings if level_of(item) == "fault"}
        assert not [item for item in findings if item.name in wrong and level_of(item) == "ok"]
        return {item.name: (level_of(item), item.message) for item in findings}

    return examine


def test_reachable_store_is_ok_and_not_written_to(examine, memory_backend):
    backend = memory_backend()
    findings = examine(lambda params: backend)
    assert findings["store"][0] == "ok"
    assert findings["run-id"] == ("ok", "the id 'job' is unused")
    assert {"versions", "plugins", "backend", "file-limit"} <= set(findings)
    assert backend.writes == 0


def test_foreign_state_in_the_store_is_a_fault(examine, memory_backend):
    backend = memory_backend()
    backend.set_state(b"something else")
    level, message = examine(lambda params: backend)["run-id"]
    assert level == "fault"
    assert message


@pytest.mark.integration
def test_absent_store_is_a_note_unless_expected(examine):
    def away(params):
        raise RendezvousConnectionError("no file /f.db")

    assert examine(away)["store"] == ("note", "no file /f.db")
    assert examine(away, DoctorOptions(expect_store=True))["store"] == ("fault", "no file /f.db")

    def broken(params):
        raise KeyError("dsn")

    level, message = examine(broken)["backend"]
    assert level == "fault"
    assert "the rendezvous backend 'toy' of plugin" in message
    assert "failed: KeyError: 'dsn'" in message
    assert "store" not in examine(None)
    assert examine(None, DoctorOptions(peers=2))["store"][0] == "fault"


@pytest.mark.integration
def test_refused_connection_is_a_warning_unless_expected(examine):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{sock.getsockname()[1]}"
        refuse = RendezvousConnectionError("never asked")

        def opened(params):
            raise refuse

        findings = examine(opened, rdzv_endpoint=endpoint)
        assert findings["connection"] == ("warning", f"nothing listens at {endpoint} yet")
        assert findings["store"][0] == "warning"
        assert examine(opened, DoctorOptions(expect_store=True), rdzv_endpoint=endpoint)["store"][0] == "fault"

        def lacks(params):
            raise ModuleNotFoundError("No module named 'client'", name="client")

        findings = examine(lacks, rdzv_endpoint=endpoint)
        assert findings["backend"][0] == "fault"
        assert findings["backend"][1].endswith("failed: ModuleNotFoundError: No module named 'client'")
        assert "store" not in findings


class Server(StoreServer):
    """A server that records its calls."""

    def __init__(self, endpoint, calls):
        self._endpoint, self.calls = endpoint, calls

    @property
    def endpoint(self):
        return self._endpoint

    def start(self):
        self.calls.append(f"serves at {self._endpoint}")

    def stop(self):
        self.calls.append("stops")


@pytest.mark.integration
def test_doctor_on_the_store_host_serves_the_store_to_peers(examine, memory_backend):
    backend, calls = memory_backend(), []

    def opened(params):
        calls.append(params.run_id)
        return backend

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{sock.getsockname()[1]}"
        doctor_options = DoctorOptions(peers=1, timeout=60.0)
        findings = examine(
            opened, doctor_options, lambda context, endpoint, nodes: Server(endpoint, calls), rdzv_endpoint=endpoint
        )
    assert calls == [f"serves at {endpoint}", "job", "job.doctor", "stops"]
    assert findings["peers"][1].startswith("1 doctor joined")
    assert "connection" not in findings, "the refused connection is outdated"


def test_closed_job_is_a_fault(examine, memory_backend):
    backend = memory_backend()
    with_roster(backend, SystemClock()).set_state(encoded_state(closed(State(), "a", "all done", True)))
    assert examine(lambda params: backend)["run-id"] == ("fault", "the job 'job' is over, closed by a: all done")


CHECKS = """
import time

from elastic_core.plugin import CheckLevel, CheckResult, HealthCheckRecord, Option, hookimpl


def mounted(context):
    return CheckResult(CheckLevel.WARNING, f"{context.options['dataset']} of {context.run_id} is cold", "read it once")


def breaks(context):
    raise ZeroDivisionError("a fault of mine")


def volumes(context):
    for name in ("a", "b"):
        yield CheckResult(CheckLevel.OK, f"mounted on {context.plan.settings.nnodes} nodes", name=name)


def halting(context):
    yield CheckResult(CheckLevel.OK, "halfway")
    raise ZeroDivisionError("another fault of mine")


@hookimpl
def elastic_add_options():
    return [Option("dataset", str, "/data", "a folder")]


@hookimpl
def elastic_health_checks():
    return [
        HealthCheckRecord("dataset", "a test", mounted),
        HealthCheckRecord("broken", "a test", breaks),
        HealthCheckRecord("odd", "a test", lambda context: "fine"),
        HealthCheckRecord("level", "a test", lambda context: CheckResult("bad", "what is that")),
        HealthCheckRecord("twice", "a test", lambda context: CheckResult(CheckLevel.OK, "once")),
        HealthCheckRecord("twice", "another test", lambda context: CheckResult(CheckLevel.OK, "twice")),
        HealthCheckRecord("unset", "a test", lambda context: CheckResult(CheckLevel.SKIPPED, "no volume is set")),
        HealthCheckRecord("slow", "a test", lambda context: time.sleep(60), timeout=0.2),
        HealthCheckRecord("well", "a test", lambda context: CheckResult(CheckLevel.OK, "all is well")),
        HealthCheckRecord("volumes", "a test", volumes),
        HealthCheckRecord("halting", "a test", halting),
        HealthCheckRecord("empty", "a test", lambda context: []),
    ]
"""


def test_plugin_health_checks_are_run_and_judged(tmp_path, monkeypatch):
    (tmp_path / "checks_plugin.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = PluginManager.load({}, entry_points=[EntryPoint("checks", "checks_plugin", "elastic")])
    settings = settings_from({"rdzv_id": "job"})
    plan = plan_of(Reading(settings, added={"dataset": "/mine"}), manager)
    options = DoctorOptions(timeout=60.0, peers=2)  # does not affect others' checks
    findings = list(of_checks(plan.health_checks(CheckMoment.BEFORE_RUN), options, SystemClock()))
    by_name = {item.message.partition(":")[0]: item for item in findings if item.name == "health-check"}
    assert {name: level_of(item) for name, item in by_name.items()} == {
        **dict.fromkeys(("broken", "odd", "level", "slow", "halting"), "fault"),
        **dict.fromkeys(("twice", "well", "volumes"), "ok"),
        "dataset": "warning",
        **dict.fromkeys(("unset", "empty"), "note"),
    }
    assert (by_name["dataset"].message, by_name["dataset"].remedy) == ("dataset: /mine of job is cold", "read it once")
    assert "failed: ZeroDivisionError: a fault of mine" in by_name["broken"].message
    assert by_name["volumes"].message == "volumes: b: mounted on 1:1 nodes"
    assert "plugin 'checks'" in by_name["halting"].message
    assert "failed: ZeroDivisionError: another fault of mine" in by_name["halting"].message
    assert by_name["slow"].message == "slow: no answer within 0.2 s"
