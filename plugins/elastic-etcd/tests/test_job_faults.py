"""Bad input and faults in a job over etcd."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest
from cluster import User, make_certificates
from job_of_nodes import SOON, Job, eventually, free_port, kill, lives

from elastic_core.errors import ExitCode

pytestmark = pytest.mark.torch


FUNCTIONS = """
import os, sys
from elastic_core.launch import LaunchConfig, elastic_launch

def rank():
    return int(os.environ["RANK"])

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 2, run_id="functions-" + sys.argv[2], rdzv_backend="etcd", rdzv_endpoint=sys.argv[1],
                          start_method=sys.argv[2])
    print(elastic_launch(config, rank)())
"""


@pytest.fixture(scope="module")
def secured(shared_servers):
    """The endpoint of a server with one user and a password."""
    return shared_servers.single(users=(User("trainer", "s3cret", b"/elastic/"),)).endpoint


def leases_of_nodes(member):
    """The lease of each node's entry."""
    found = member.call("/v3/kv/range", key=b"/elastic/job/nodes/", range_end=b"/elastic/job/nodes0", keys_only=True)
    return [pair["lease"] for pair in found.get("kvs", [])]


@pytest.fixture
def job_at(elastic):
    """Makes jobs over these endpoints."""

    def make(endpoint, **conf):
        return Job(elastic.start_to_files, elastic.cwd, "etcd", endpoint, **conf)

    return make


def test_unreachable_endpoint_ends_agent_with_its_exit_code(job_at):
    conf = {
        "read_timeout": "0.5",
        "join_timeout": "10",
    }  # on a busy machine, the first failure may take seconds
    agent = job_at(f"127.0.0.1:{free_port()}", **conf).agent("a", "--nnodes=2")
    assert agent.code() == ExitCode.STORE_UNREACHABLE
    assert "etcd did not answer within" in agent.report


def test_single_node_without_endpoint_starts_its_own_etcd(elastic):
    done = elastic.run("--rdzv-backend=etcd", elastic.script("hello.py", "print('hello')\n"))
    assert (done.code, done.out) == (0, "hello\n")
    eventually(lambda: not elastic.living(), "its etcd ends with it")


SHOWS = "import os; print([name for name, value in os.environ.items() if 's3cret' in value], os.environ['INHERITED'])"
PLUGIN = f"""
import subprocess, sys
from elastic_core.plugin import hookimpl

@hookimpl
def elastic_round_formed(fact):
    subprocess.run([sys.executable, "-c", {SHOWS!r}])
"""


@pytest.fixture
def site(put_on_path):
    """A folder with a plugin that runs a command whenever a round has formed."""
    return str(put_on_path("shows", {"elastic": ["shows = shows_plugin"]}, {"shows_plugin": PLUGIN}))


@pytest.mark.parametrize(
    ("where", "flags"),
    [
        ("ELASTIC_ETCD_PASSWORD", ("--warm-start",)),
        ("MINE", ()),
        ("options", ()),
        ("options", ("--warm-start",)),
        ("file", ()),
    ],
)
def test_password_reaches_no_worker_and_no_output(elastic, secured, site, where, flags, tmp_path):
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    options = {"MINE": "password_env=MINE", "options": "password=s3cret", "file": f"password_file={path}"}
    variables = {} if where in ("options", "file") else {where: "s3cret"}
    conf = ",".join(filter(None, ("user=trainer", options.get(where))))
    variables |= {"ELASTIC_RDZV_CONF": conf, "INHERITED": "yes", "PYTHONPATH": site}
    line = (
        *flags,
        "--rdzv-backend=etcd",
        f"--rdzv-id={tmp_path.name}",
        f"--rdzv-endpoint={secured}",
        "--log-level=debug",
    )
    done = elastic.run(*line, elastic.script("shows.py", SHOWS), **variables)
    assert done.code == 0, done.err
    of_hook = "['ELASTIC_RDZV_CONF'] yes" if where == "options" else "[] yes"
    assert sorted(done.out.splitlines()) == sorted(["[] yes", of_hook])
    assert "s3cret" not in done.err


def test_round_survives_revoked_leases_of_all_nodes(job_at, servers):
    """Clusters before 3.5.11 revoke all leases when a paused leader resumes."""
    member = servers.single()
    job = job_at(member.endpoint)
    agents = job.agents("a b", "--nnodes=2", script=job.trainer)
    first = job.round(2)
    before = leases_of_nodes(member)
    for lease in before:
        member.call("/v3/lease/revoke", ID=lease)
    eventually(lambda: len(leases_of_nodes(member)) == 2, "both nodes to be back")
    assert not set(before) & set(leases_of_nodes(member))
    job.ends_well(*agents)
    assert [found.port for found in job.rounds()] == [first.port]


@pytest.mark.nightly
def test_job_survives_renewed_certificates(job_at, servers, tmp_path):
    """The same files get certificates from a new authority, and the server restarts with them."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    made = make_certificates(folder)
    member = servers.single(certificates=made, client_certificates=True)
    files = {"ca_cert": made.ca, "ssl_cert": made.client_cert, "ssl_cert_key": made.client_key}
    job = job_at(member.endpoint, **files)
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    member.terminate()
    for file in folder.iterdir():
        file.unlink()
    make_certificates(folder)
    member.start()
    kill(first.pid("a"))
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    job.ends_well(*agents)


def test_job_recovers_once_a_full_etcd_has_room(job_at, servers):
    """Workers keep running; the agent reports a failed worker once the server has room."""
    member = servers.single()
    job = job_at(member.endpoint)
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    me = member.call("/v3/maintenance/status")["header"]["member_id"]
    member.call("/v3/maintenance/alarm", action="ACTIVATE", memberID=me, alarm="NOSPACE")
    kill(first.pid("b"))
    agents[1].says("alarm disarm")
    assert job.rounds() == [first]
    member.call("/v3/maintenance/alarm", action="DEACTIVATE", memberID=me, alarm="NOSPACE")
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    job.ends_well(*agents)


@pytest.fixture
def launched(elastic, etcd_endpoint):
    """Runs functions over etcd by a start method."""
    script = elastic.script("functions.py", FUNCTIONS)

    def launched(method):
        command = [sys.executable, script, etcd_endpoint, method]
        return subprocess.run(command, cwd=elastic.cwd, capture_output=True, text=True, timeout=180, check=False)

    return launched


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_launched_functions_run_over_etcd(launched, method):
    assert launched(method).stdout == "{0: 0, 1: 1}\n"


def test_launch_by_fork_is_refused_with_etcd_client(launched):
    done = launched("fork")
    assert done.returncode == 1
    assert (
        "--start-method: fork forks the agent, but the client of the rendezvous backend 'etcd' does not survive a fork"
        in done.stderr
    )


@pytest.mark.nightly
def test_permanent_loss_of_etcd_ends_the_job(job_at, servers):
    """Workers run until the grace ends; agents then wait for the join timeout, and end with the documented code."""
    member = servers.single()
    job = job_at(member.endpoint, outage_grace="3", join_timeout="20", **SOON)
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    member.kill()
    for agent in agents:
        agent.says("restart decided: cause=membership")
        assert "the rendezvous store was unreachable for" in agent.err
    for agent in agents:
        assert agent.code() == ExitCode.STORE_UNREACHABLE
        assert "etcd did not answer within" in agent.report
    assert [found.port for found in job.rounds()] == [first.port]
    assert not any(lives(first.pid(name)) for name in "ab")


@pytest.mark.nightly
def test_outage_beyond_the_grace_uses_up_no_restart(job_at, servers):
    """The workers are stopped, and start again when the server resumes."""
    member = servers.single()
    job = job_at(member.endpoint, outage_grace="0", **SOON)
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    member.stop()
    for agent in agents:
        agent.says("restart decided: cause=membership")
    eventually(lambda: not any(lives(first.pid(name)) for name in "ab"), "the workers to be stopped")
    member.cont()
    second = job.round(2, after=first)
    assert second.restarts == {"0"}
    job.ends_well(*agents)


def test_outage_within_the_grace_disturbs_no_worker(job_at, servers):
    member = servers.single()
    job = job_at(member.endpoint)
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    member.stop()
    agents[0].says("store out of reach")
    member.cont()
    agents[0].says("store is back")
    kill(first.pid("a"))
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    job.ends_well(*agents)


@pytest.mark.nightly
def test_thousand_joins_and_leaves_leak_nothing(servers):
    """Neither threads, files and memory of this process, nor keys and leases of the server."""
    from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

    member = servers.single()
    me = psutil.Process()

    def take_part():
        handler = get_rendezvous_handler(RendezvousParameters("etcd", member.endpoint, "job", 1, 1))
        number = handler.next_rendezvous().formed.number
        assert handler.leave("it was only a visit", 30)
        assert handler.shutdown()
        return number

    def leases():
        return len(member.call("/v3/lease/leases").get("leases", []))

    def keys():
        return int(member.call("/v3/kv/range", key=b"\0", range_end=b"\0", count_only=True)["count"])

    used = []  # gRPC's pool varies by a few, so the maximum of the first hundred is the limit
    for _ in range(100):
        take_part()
        used.append((me.num_threads(), me.num_fds()))
    threads, files, memory = max(t for t, _ in used), max(f for _, f in used), me.memory_info().rss
    numbers = [take_part() for _ in range(900)]
    assert numbers == list(range(101, 1001))
    eventually(lambda: me.num_threads() <= threads + 2, "no more threads than before")
    eventually(lambda: me.num_fds() <= files + 3, "no more open files than before")
    assert me.memory_info().rss - memory < 16 * 2**20
    assert keys() == 1  # the state
    assert leases() == 1  # the state's


def saving(member, which):
    if which == "snapshot":
        member.save_snapshot()
    elif which == "restored":
        member.save()


def losing(member, which):
    if which == "wiped":
        member.lose_data()
    elif which == "replaced":
        member.lose_data(another=True)
    elif which == "snapshot":
        member.restore_snapshot()
    else:
        member.restore()


@pytest.mark.parametrize("earlier", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("nodes", "which"), [("a", "wiped"), ("a b", "replaced"), ("a b", "restored"), ("a", "snapshot")]
)
def test_job_recovers_worker_after_etcd_lost_data(job_at, servers, which, nodes, earlier):
    """The nodes write their state back, and the job recovers from the failed worker. With an earlier restart, the
    backup holds the state of an earlier round."""
    member = servers.single()
    count = len(nodes.split())
    job = job_at(member.endpoint)
    if not earlier:
        saving(member, which)
    agents = job.agents(nodes, f"--nnodes={count}", "--max-restarts=3")
    last = job.round(count)
    if earlier:
        saving(member, which)
        kill(last.pid("a"))
        last = job.round(count, after=last)
    losing(member, which)
    time.sleep(1)  # the outage
    member.start()
    kill(last.pid(nodes[-1]))
    last = job.round(count, after=last)
    assert last.restarts == {str(1 + earlier)}
    job.ends_well(*agents)


def test_sigterm_ends_agent_during_an_etcd_outage(job_at, servers):
    member = servers.single()
    job = job_at(member.endpoint)
    agent = job.agent("a", "--nnodes=1")
    job.round(1)
    member.stop()
    agent.signal(signal.SIGTERM)
    assert agent.code() == 128 + signal.SIGTERM
