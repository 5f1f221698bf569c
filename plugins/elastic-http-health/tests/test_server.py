"""The endpoint's answers to clients, over real sockets."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from asking import ask
from elastic_http_health.options import Limits, Options
from elastic_testing import Background, eventually
from prometheus_client.parser import text_string_to_metric_families

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, ProcessFailure
from elastic_core.interfaces.health import (
    AgentPhase,
    CheckLevel,
    CheckResult,
    CheckStatus,
    Recovery,
    RoundStatus,
    StopStatus,
    WorkerStatus,
)
from elastic_core.interfaces.node import Member

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "health.md"
TOKEN = {"Authorization": "Bearer s3cret"}


def fill(view):
    """Give every field of the status a value."""
    view.checked = (CheckStatus("data", "the data is mounted", CheckResult(CheckLevel.OK, "mounted"), 5.0),)
    view.show(
        phase=AgentPhase.STOPPING, reason="rank 0: exit code 41", round=2, group_rank=0,
        restart_count=1, max_restarts=3,
        members=(Member("node0", "host0", "10.0.0.1", "trainer", 1),),
        workers=(WorkerStatus(0, 0, os.getpid(), "running"),),
        rounds=(RoundStatus(1, 1, 0, 1, 5.0, "all are there", 9.0, "rank 0: exit code 41", "failure", 0.2),
                RoundStatus(2, 1, 0, 1, 10.0, rendezvous=0.01)),
        recoveries=(Recovery(2, "failure", "rank 0: exit code 41", 10.0, 0.1, 0.2, 0.3, 0.4),),
        restarts=(("failure", 1),), stop=StopStatus(2, 40, 69.0, 99.0, (0,), (1,)),
        last_failure=ProcessFailure(0, 7, -11, message="m", reason="killed", stack="a stack", stderr_tail=("x",)),
    )  # fmt: skip


def paths(value, prefix=""):
    """The paths of all fields of a document, such as `members[].node`."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{prefix}[]")}
    if isinstance(value, dict):
        return {path for key, item in value.items() for path in paths(item, f"{prefix}.{key}" if prefix else key)}
    return {prefix}


def test_status_fields_match_the_reference(view, serve, child):
    view.template = child.pid
    fill(view)
    found = ask(serve().port, "/status")
    assert (found.status, found.headers["Content-Type"]) == (200, "application/json")
    assert (found.json["version"], found.json["phase"], found.json["ready"]["ok"]) == (1, "stopping", False)
    fields = {re.sub(r"^restarts\..*", "restarts", path) for path in paths(found.json)}
    section = DOCS.read_text().partition("## The status as JSON")[2].partition("\n## ")[0]
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`([\w.\[\]]+)`", row)
    }
    assert documented - {"last_failure"} == fields


def test_metrics_match_the_reference(view, serve, child):
    view.template = child.pid
    fill(view)
    server = serve()
    ask(server.port, "/status")
    found = ask(server.port, "/metrics")
    names = {family.name for family in text_string_to_metric_families(found.text)}
    section = DOCS.read_text().partition("## Metrics")[2].partition("\n## ")[0]
    documented = {re.sub(r"_total$", "", name) for name in re.findall(r"^\| `(\w+)", section, re.M)}
    assert documented == names
    values = {
        (s.name, *sorted(s.labels.values())): s.value
        for f in text_string_to_metric_families(found.text)
        for s in f.samples
    }
    assert values["elastic_restarts_total", "failure"] == 1
    assert values["elastic_restarts_total", "hang"] == 0
    assert values["elastic_phase", "stopping"] == 1
    assert values["elastic_recovery_seconds_sum", "failure", "stop"] == 0.2
    assert values["elastic_rendezvous_seconds_count",] == 2
    assert values["elastic_health_answers_total", "200"] == 1


@pytest.fixture
def child():
    """A process that has used some CPU time, and has a child."""
    code = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "held = bytearray(40 << 20); print(1, flush=True); input()"], stdin=0)
until = time.process_time() + 0.1
while time.process_time() < until: pass
print("there", flush=True); below.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    output = "".join(process.stdout.readline() for _ in range(2))  # in any order
    assert sorted(output) == sorted("1\nthere\n")
    yield process
    process.communicate("\n", timeout=180)


def test_worker_usage_includes_child_processes(view, serve, child):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    view.show(workers=(WorkerStatus(0, 4, child.pid, "running"), WorkerStatus(1, 5, gone.pid, "running")))
    port = serve().port
    used, unknown = ask(port, "/status").json["workers"]
    assert used["cpu_seconds"] >= 0.1
    assert used["memory_bytes"] > 45 << 20
    assert (unknown["cpu_seconds"], unknown["memory_bytes"]) == (None, None)
    metrics = ask(port, "/metrics").text
    assert 'elastic_worker_memory_bytes{local_rank="0",rank="4"}' in metrics
    assert 'rank="5"' not in metrics


def test_template_memory_is_reported(view, serve, child):
    port = serve().port
    assert ask(port, "/status").json["template"] is None
    assert "elastic_template_memory_bytes" not in ask(port, "/metrics").text
    view.template = child.pid
    view.show()
    shown = ask(port, "/status").json["template"]
    assert shown["pid"] == child.pid
    assert shown["memory_bytes"] > 10 << 20
    [memory] = re.findall(r"^elastic_template_memory_bytes (\S+)$", ask(port, "/metrics").text, re.MULTILINE)
    assert float(memory) > 10 << 20


def test_workers_are_sampled_at_most_once_per_second(view, serve, child):
    view.show(workers=(WorkerStatus(0, 0, child.pid, "running"),))
    port = serve().port
    begun = SystemClock().now()
    bodies = {ask(port, "/status").body for _ in range(20)}
    assert len(bodies) <= 1 + (SystemClock().now() - begun)


def test_changes_request_returns_on_the_next_change(view, serve):
    port = serve().port
    change = ask(port, "/changes").json["change"]
    assert ask(port, "/changes?after=0&wait=20").json["change"] == change
    begun = SystemClock().now()
    assert ask(port, f"/changes?after={change}&wait=0.2").json["change"] == change
    assert SystemClock().now() - begun >= 0.2
    waiting = Background(lambda: ask(port, f"/changes?after={change}&wait=30").json)
    while not waiting.over(0.05):  # the first change may come before its request
        view.show(phase=AgentPhase.STOPPING)
    assert waiting.result()["change"] > change
    assert SystemClock().now() - begun < 20


@pytest.mark.parametrize("query", ["after=x", "after=1&wait=x", "after=1&wait=nan", "after=1&wait=-5", "after=9e9"])
def test_invalid_waits_return_immediately(serve, query):
    assert ask(serve().port, f"/changes?{query}").status in (200, 400)


def test_waits_beyond_the_limit_return_immediately(view, serve):
    port = serve(Options(limits=Limits(waiting=1))).port
    change = ask(port, "/changes").json["change"]
    with socket.create_connection(("127.0.0.1", port), 60) as first:
        first.sendall(b"GET /changes?after=%d&wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n" % change)
        for _ in range(2):  # before the second answer, the server has read the request above
            ask(port, "/livez")
        begun = SystemClock().now()
        assert ask(port, f"/changes?after={change}&wait=30").status == 200
        assert SystemClock().now() - begun < 20
        view.show(round=2)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_methods_other_than_get_are_refused(serve, method):
    found = ask(serve().port, "/status", method)
    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")


PATIENT = Options(limits=Limits(rest_seconds=60))  # tolerates clients that stall


def send_all(port, *pieces):
    """Send all pieces before reading the answer; a reset connection raises."""
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        for piece in pieces:
            link.sendall(piece)
        found = b""
        while piece := link.recv(65536):
            found += piece
        return found


HEAD = b"Host: localhost\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_client_that_sends_a_body_gets_an_answer(serve, method):
    port = serve(PATIENT).port
    head = method + b" /status HTTP/1.1\r\n" + HEAD
    assert send_all(port, head + b"x" * 100_000).startswith(b"HTTP/1.1 413 ")
    assert send_all(port, head, b"x" * 50_000, b"x" * 50_000).startswith(b"HTTP/1.1 413 ")


def test_pipelined_requests_get_only_the_first_answer(serve):
    port = serve(PATIENT).port
    found = send_all(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    assert found.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in found


def test_endless_body_is_cut_off(serve):
    server = serve(Options(limits=Limits(rest_seconds=0.3)))
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(b"POST / HTTP/1.1\r\n" + HEAD)
        assert link.recv(100).startswith(b"HTTP/1.1 413 ")
        eventually(lambda: server.counts.connections == 0)
    with socket.create_connection(("127.0.0.1", server.port), 60) as link, pytest.raises(ConnectionError):
        link.sendall(b"POST / HTTP/1.1\r\n" + HEAD)
        while True:
            link.sendall(b"x" * 65536)
    assert server.counts.closed == {}


def test_head_request_has_no_body(serve):
    found = ask(serve().port, "/livez", "HEAD")
    assert (found.status, found.body) == (200, b"")


def test_unknown_path_lists_the_known_paths(serve):
    found = ask(serve().port, "/../etc/passwd")
    assert (found.status, "/status" in found.text) == (404, True)


@pytest.mark.parametrize("path", ["/", "/livez", "/status", "/metrics", "/nowhere"])
def test_all_answers_have_security_headers(serve, path):
    headers = ask(serve().port, path).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert (headers["Referrer-Policy"], headers["X-Frame-Options"]) == ("no-referrer", "DENY")
    assert "Server" not in headers and "Access-Control-Allow-Origin" not in headers


def test_foreign_host_header_is_refused_on_loopback(serve):
    port = serve().port
    for path in ("/", "/status", "/livez"):
        assert ask(port, path, headers={"Host": "evil.example"}).status == 421
    assert ask(port, "/status", headers={"Host": f"localhost:{port}"}).status == 200


@pytest.mark.parametrize("path", ["/", "/status", "/changes", "/metrics", "/livez", "/readyz", "/nowhere"])
def test_foreign_host_header_is_refused_on_other_addresses(serve, path):
    """DNS rebinding: the foreign name resolves to this server, which the browser takes for the page's own."""
    port = serve(Options(host="0.0.0.0", allowed_hosts=("node7.example",))).port
    found = ask(port, path, headers={"Host": f"evil.example:{port}"})
    assert (found.status, "allowed_hosts=NAME" in found.text, "node7" in found.text) == (421, True, False)
    names = ("127.0.0.1", "localhost", "10.9.8.7", "node7.example", socket.gethostname(), f"[::1]:{port}")
    assert {ask(port, path, headers={"Host": name}).status for name in names} == {404 if path == "/nowhere" else 200}


def test_listening_host_name_is_allowed(serve):
    host = socket.gethostname()
    try:
        port = serve(Options(host=host)).port
    except ConfigurationError:
        pytest.skip("this machine does not know its own name")
    assert ask(port, "/status", host=host).status == 200


def test_without_token_probes_hide_reasons_and_pages_are_denied(view, serve):
    view.show(phase=AgentPhase.JOINING, reason="gpu-13 is missing")
    port = serve(Options(token="s3cret")).port
    assert (ask(port, "/readyz").status, ask(port, "/readyz?verbose").text) == (503, "not ok\n")
    assert ask(port, "/livez").text == "ok\n"
    for path in ("/status", "/metrics", "/changes"):
        found = ask(port, path)
        assert (found.status, found.headers["WWW-Authenticate"], "gpu-13" in found.text) == (401, "Bearer", False)
        assert ask(port, path, headers={"Authorization": "Bearer s3cre"}).status == 401
        assert ask(port, path, headers=TOKEN).status == 200
    assert "gpu-13 is missing" in ask(port, "/readyz", headers=TOKEN).text
    assert "job" not in ask(port, "/").text.partition("<body>")[2].partition("<script>")[0].replace("job without", "")


def test_verbose_probe_lists_its_checks(view, serve):
    port = serve().port
    assert ask(port, "/livez?verbose").text.endswith("livez check passed\n")
    view.fault = "its thread has ended"
    found = ask(port, "/livez?verbose")
    assert found.status == 503
    assert found.text.splitlines() == [
        "[+]loop: the agent's loop is running",
        "[-]watchdog: its thread has ended",
        "livez check failed",
    ]


def test_unencodable_text_is_escaped(view, serve):
    view.show(phase=AgentPhase.STOPPING, reason="lone \udce9", run_id="r\udce9")
    port = serve().port
    assert "lone \\udce9" in ask(port, "/readyz").text
    assert ask(port, "/status").json["reason"] == "lone \udce9"
    assert ask(port, "/metrics").status == 200


def test_failing_view_answers_500_and_is_logged_once(view, serve, capfd):
    class Broken(type(view)):
        def watchdog_fault(self):
            raise RuntimeError("no luck")

    port = serve(agent=Broken()).port
    assert [ask(port, "/livez").status for _ in range(3)] == [500, 500, 500]
    assert ask(port, "/readyz").status == 200
    assert capfd.readouterr().err.count("health endpoint failed") == 1


def test_forked_child_holds_neither_port_nor_connections(serve, quiet_port):
    server, port = serve(port=quiet_port), quiet_port
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        ask(port, "/livez")  # by now the connection above has been accepted
        context = multiprocessing.get_context("fork")
        release, wait = context.Pipe()
        child = context.Process(target=lambda: (wait.send("it runs"), wait.recv()))
        child.start()
        try:
            assert release.poll(60) and release.recv()  # until then, it may still hold descriptors
            server.stop()
            assert link.recv(1) == b""
            with socket.create_server(("127.0.0.1", port)):
                pass
        finally:
            release.send("go")
            child.join(60)
    assert child.exitcode == 0


def test_plugin_import_loads_nothing_heavy():
    heavy = "{'asyncio', 'h11', 'prometheus_client'}"
    code = f"import elastic_http_health.plugin, sys; print([*{heavy}.intersection(sys.modules)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert json.loads(done.stdout) == []


def test_health_check_results_are_shown(view, serve):
    port = serve().port
    assert ask(port, "/status").json["checks"] == []
    bad = CheckResult(CheckLevel.FAILURE, "/data is not mounted", "mount /data")
    unset = CheckStatus("volume", "the volume", CheckResult(CheckLevel.SKIPPED, "no volume is configured"), 5.0)
    view.checked = (CheckStatus("data", "the data is mounted", bad, 5.0), CheckStatus("gpu", "GPUs answer"), unset)
    view.show(reason="a change, so that the documents are made again")
    shown = ask(port, "/status").json["checks"]
    finding = {"level": "failure", "message": "/data is not mounted", "remedy": "mount /data", "checked_at": 5.0}
    assert shown[0] == {"name": "data", "summary": "the data is mounted", **finding}
    assert [(check["name"], check["level"]) for check in shown[1:]] == [("gpu", "pending"), ("volume", "skipped")]
    assert ask(port, "/changes").json["checks"] == shown
    metrics = ask(port, "/metrics").text
    assert 'elastic_health_check{level="failure",name="data"} 1.0' in metrics
    assert 'elastic_health_check{level="skipped",name="volume"} 1.0' in metrics
    assert ask(port, "/livez").status == ask(port, "/readyz").status == 200
