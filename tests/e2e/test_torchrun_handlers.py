"""A third party's rendezvous for torchrun, based on torch's own: `elastic run` finds it and runs jobs with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_of_nodes import Job, kill

pytestmark = pytest.mark.torch

HANDLER = """
import torch  # at the top, as such modules have it
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler


def handler():
    return create


def create(params):
    backend, store = c10d_rendezvous_backend.create_backend(params)
    nodes = (params.min_nodes, params.max_nodes)
    return DynamicRendezvousHandler.from_backend(params.run_id, store, backend, *nodes, params.local_addr)
"""
MOODY = """
def handler():
    return create


def create(params):
    raise LookupError(f"expected a good mood, found {params.get('mood')}")
"""
WITHOUT_THE_VARIABLE = """
import os
assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in os.environ
"""


@pytest.fixture
def site(put_on_path):
    """The folder in which the package is installed, for PYTHONPATH."""
    points = ["acme = acme_meeting:handler", "moody = acme_moody:handler", "gone = acme_gone:handler"]
    modules = {"acme_meeting": HANDLER, "acme_moody": MOODY}
    return str(put_on_path("acme-meeting", {"torchrun.handlers": points}, modules, version="2.1"))


@pytest.fixture
def acme(elastic):
    job = Job(elastic.start_to_files, elastic.cwd, "acme")
    job.conf = {"read_timeout": "60"}
    return job


def test_failed_worker_is_restarted(acme, site):
    """A plain DDP loop over two nodes. torch's handler would pass the same store to the workers of all rounds, which
    would look for peers of the previous round; here each round has a new one. The variable that makes torch's handler
    do so stays in the agent."""
    flags = ("--nnodes=2", "--max-restarts=1")
    script = Path(acme.trainer)
    script.write_text(WITHOUT_THE_VARIABLE + script.read_text())
    agents = acme.agents("a b", *flags, script=acme.trainer, PYTHONPATH=site)
    first = acme.round(2)
    assert first.all("saw") == [2, 2]  # they met in a collective
    assert first.restarts == {"0"}
    kill(first.pid("b"))
    second = acme.round(2, after=first)
    assert second.all("saw") == [2, 2]
    assert second.restarts == {"1"}
    assert second.port != first.port
    assert set(first.all("TORCHELASTIC_USE_AGENT_STORE") + second.all("TORCHELASTIC_USE_AGENT_STORE")) == {"False"}
    acme.ends_well(*agents)
    for agent in agents:
        assert "restarts=1" in agent.err


def test_store_hosts_exit_spares_healthy_workers(acme, site):
    host = acme.agent("a", "--nnodes=2", "--rdzv-conf=is_host=true", PYTHONPATH=site)
    other = acme.agent("b", "--nnodes=2", "--rdzv-conf=is_host=false", PYTHONPATH=site)
    acme.round(2)
    acme.end("a")
    assert host.code() == 0
    other.says("rendezvous out of reach")
    acme.end("b")
    assert other.code() == 0
    assert other.err.count("rendezvous out of reach") == 1


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("moody", "'moody' of plugin 'moody' of acme-meeting 2.1 failed: LookupError: expected a good mood"),
        ("gone", "'gone' of plugin 'gone' of acme-meeting 2.1 failed: ModuleNotFoundError: No module named"),
    ],
)
def test_handler_error_names_its_package(elastic, site, backend, words):
    where = (f"--rdzv-backend={backend}", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=job", "--nnodes=2")
    done = elastic.run(*where, "--rdzv-conf=mood=bad", elastic.script("train.py", ""), PYTHONPATH=site)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_handler_is_listed_with_its_package(elastic, site):
    done = elastic.finish(elastic.start("plugins", PYTHONPATH=site))
    assert "\n  acme: acme_meeting:handler (acme-meeting 2.1)\n" in done.out
