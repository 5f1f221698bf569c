"""Real distributions for tests: dist-info folders and modules in separate folders on sys.path."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from elastic_core.interfaces.workers import RoundPlan

sys.path.insert(0, str(Path(__file__).parent))  # for the helper modules of these tests


@pytest.fixture
def install(put_on_path):
    """A function like `put_on_path` that returns the distribution's entry points."""

    def install(name, entry_points, modules=None, version="1.0"):
        folder = str(put_on_path(name, entry_points, modules, version))
        distributions = importlib.metadata.distributions(path=[folder])
        return [point for distribution in distributions for point in distribution.entry_points]

    return install


@pytest.fixture
def install_plugin(install):
    """A function that installs a distribution of one plugin, given its source, and returns its entry points."""

    def install_plugin(name, source, version="1.0", plugin=None, group="elastic"):
        module = f"{name.replace('-', '_')}_plugin"
        return install(name, {group: [f"{plugin or name} = {module}"]}, {module: source}, version)

    return install_plugin


@pytest.fixture
def backend_source():
    """A function that writes a plugin with rendezvous backends of the given names."""

    def backend_source(*names, aliases=()):
        records = ", ".join(
            f"RendezvousBackendRecord({name!r}, 'a test', lambda params: params, aliases={aliases!r})" for name in names
        )
        return f"""
            from elastic_core.plugin import RendezvousBackendRecord, hookimpl

            @hookimpl
            def elastic_rendezvous_backends():
                return [{records}]
            """

    return backend_source


@pytest.fixture
def log_lines():
    """The log lines written during the test, as dictionaries."""
    import io
    import json

    from elastic_core import log

    stream = io.StringIO()
    log.configure(format="json", level="debug", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    log.configure(level="warning")


@pytest.fixture
def plan():
    """The fourth round of `job`, after two restarts, on a single node."""
    return RoundPlan(
        round=4,
        run_id="job",
        node="node7",
        role="default",
        group_rank=0,
        group_world_size=1,
        world_size=1,
        role_world_size=1,
        master_addr="localhost",
        master_port=1,
        use_agent_store=False,
        restart_count=2,
        max_restarts=3,
        ranks=(),
    )
