"""`elastic status`, `drain` and `serve`, with a third-party backend of two methods."""

from __future__ import annotations

import json
import os

import pytest

from elastic_core import cli
from elastic_core.clock import SystemClock
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context, RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.interfaces.node import Member
from elastic_core.rendezvous.codec import encoded_entry, encoded_state
from elastic_core.rendezvous.model import Cause, Entry, RoundId, Seat, Seats, State, ended
from elastic_core.rendezvous.store_backend import with_roster

PLUGIN = """
import os, signal

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugin import BACKEND_OPTIONS, RendezvousBackendRecord, hookimpl
from elastic_testing import StateOnlyBackend

jobs = {}


class Away(StateOnlyBackend):
    def get_state(self):
        raise RendezvousConnectionError("no folder at /nowhere")


class Server:
    def __init__(self, context, endpoint, nodes):
        self.endpoint, self.nodes = endpoint, nodes

    def start(self):
        if self.endpoint.startswith("taken"):
            from elastic_core.errors import ConfigurationError, Problem
            raise ConfigurationError(Problem("--rdzv-endpoint", "it is taken"))
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self):
        print("stopped, sized for", self.nodes)


def open_job(context, params):
    return Away() if params.endpoint == "/nowhere" else jobs.setdefault(params.run_id, StateOnlyBackend())


@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("toy", "a test", print, BACKEND_OPTIONS, (), open_job, Server)]
"""


@pytest.fixture(autouse=True)
def toy(put_on_path, tmp_path, monkeypatch):
    """Install the plugin, and keep the real configuration from being read."""
    put_on_path("toys", {"elastic": ["toy = toys_plugin"]}, {"toys_plugin": PLUGIN})
    (tmp_path / "elastic.toml").write_text("")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def backend():
    """The job's backend."""
    record = PluginManager.load(os.environ).select(RendezvousBackendRecord, "toy")
    return record.open_backend(Context(), RendezvousParameters("toy", "", "job", 1, 1))


@pytest.fixture
def store(backend):
    """A function that writes the given state and announces nodes."""

    def store(state, names=""):
        written = with_roster(backend, SystemClock())
        written.set_state(encoded_state(state))
        for name in names:
            written.announce(f"{name}/1", encoded_entry(Entry(f"{name}/1", name, f"host-{name}")))

    return store


@pytest.fixture
def job_flags(tmp_path):
    return ["--rdzv-backend=toy", f"--rdzv_endpoint={tmp_path}", "--rdzv-id", "job"]


FAST = "--rdzv-conf=keep_alive_interval=0.05,keep_alive_max_attempt=2"


def running(*names):
    seats = Seats.of(Seat(f"{name}/1", Member(name, f"host-{name}", name, "default", 1)) for name in names)
    return State(round=RoundId(2), open=True, seats=seats, min_nodes=1, max_nodes=2, max_restarts=3)


def test_status_shows_round_and_members(store, job_flags, capsys):
    store(state=running("a", "b"), names="ab")
    assert cli.main(["status", *job_flags, FAST]) == 0
    output = capsys.readouterr()
    assert "  round 2 runs with 2 nodes (1 to 2 allowed)\n" in output.out
    assert "0     a " in output.out
    assert output.err == ""


def test_status_json_lists_members_and_other_nodes(store, job_flags, capsys):
    store(state=running("a"), names="ac")
    assert cli.main(["status", *job_flags, FAST, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [node["node"] for node in (*content["members"], *content["others"])] == ["a", "c"]


def test_status_reads_job_from_variables_and_config_file(store, tmp_path, monkeypatch, capsys):
    store(state=running("a"))
    (tmp_path / "elastic.toml").write_text(f'backend = "toy"\nendpoint = "{tmp_path}"\nnproc_per_node = 4\n')
    monkeypatch.setenv("PET_RDZV_ID", "job")
    assert cli.main(["status"]) == 0
    assert "job job (toy at" in capsys.readouterr().out


def test_unknown_job_exits_8(job_flags, capsys):
    assert cli.main(["status", *job_flags]) == 8
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("elastic status: no job with the id 'job' at ")


def test_unreachable_store_exits_4(capsys):
    assert cli.main(["status", "--rdzv-backend=toy", "--rdzv-endpoint=/nowhere", "--rdzv-id=job"]) == 4
    assert capsys.readouterr().err == "elastic status: no folder at /nowhere\n"


def test_foreign_store_content_exits_7(job_flags, backend, capsys):
    backend.set_state(b"hello")
    assert cli.main(["status", *job_flags]) == 7
    assert "elastic status: expected the values of a store of version" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["drain", "a"]])
def test_command_requires_endpoint_and_job_id(command, capsys):
    assert cli.main(command) == 2
    assert "--rdzv-endpoint: this command requires --rdzv-endpoint=HOST:PORT" in capsys.readouterr().err
    assert cli.main([*command, "--rdzv-endpoint=h"]) == 2
    assert "--rdzv-id: this command requires --rdzv-id=ID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("status --rdzv-backend=local --rdzv-endpoint=h --rdzv-id=j", "jobs on the backend 'local' cannot be observed"),
        ("status --rdzv-backend=missing --rdzv-endpoint=h --rdzv-id=j", "no rendezvous backend named 'missing' is"),
        ("status --rdzv-endpoint=h --rdzv-id=j --timeout=0", "--timeout: expected a number of seconds > 0"),
        ("drain a --rdzv-endpoint=h --rdzv-id=j --deadline=1e19", "--deadline: expected at most 9,000,000,000 seconds"),
        ("status node7 --rdzv-endpoint=h --rdzv-id=j", "elastic status: expected only flags, found node7"),
        ("drain --rdzv-endpoint=h --rdzv-id=j", "elastic drain: expected NODE, found nothing"),
        ("serve", "--rdzv-endpoint: elastic serve requires"),
        ("serve --rdzv-endpoint=1 --rdzv-backend=local", "the backend 'local' has no store to serve"),
        ("serve --rdzv-endpoint=taken:1 --rdzv-backend=toy", "--rdzv-endpoint: it is taken"),
    ],
)
def test_bad_configuration_exits_2(line, problem, capsys):
    assert cli.main(line.split()) == 2
    assert problem in capsys.readouterr().err


def test_drain_rejects_a_lost_node(store, job_flags, capsys):
    store(state=ended(running("a", "b"), Cause.LOST, "a", "lost both", ("a/1", "b/1")), names="ab")
    assert cli.main(["drain", "a", *job_flags, "--timeout=0", FAST]) == 8
    assert "no node matches 'a' (nodes: none; missing: a, b)" in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "size"), [("1", 1000), ("1:4000", 4000)])
def test_serve_runs_until_sigterm(capfd, nodes, size):
    line = ["serve", "--rdzv-backend=toy", "--rdzv-endpoint=h:1", "--log-format=json", f"--nnodes={nodes}"]
    assert cli.main(line) == 0
    output = capfd.readouterr()
    assert output.out == f"stopped, sized for {size}\n"
    events = [json.loads(line) for line in output.err.splitlines()]
    assert [event["event"] for event in events] == ["store served", "store closed"]
    assert (events[0]["endpoint"], events[1]["signal"]) == ("h:1", "SIGTERM")
