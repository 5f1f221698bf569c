"""Users install each distribution by name into a fresh environment, outside the checkout."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import pytest
import version

VERSION = version.versions()["core"]
ALONE = {
    "elastic-core": set(),
    "elastic-c10d": set(),
    "elastic-etcd": set(),
    "elastic-etcd-legacy": {"elastic-etcd"},  # built on top of it
    "elastic-file-timer": set(),
    "elastic-http-health": set(),
    "elastic-doctor": set(),
    "elastic-notices": set(),
    "elastic-otel": set(),
    "elastic-testing": set(),
    "elastic-warm": set(),
}
"""The other distributions of the project that come with it, besides the core."""

TRAIN = "import os; print(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\")"


def need(checkout, name):
    """Skip if a third-party package that it needs is not installed."""
    text = (checkout[name] / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[(.*?)\]$", text, re.M | re.S)
    for package in set(re.findall(r'"([\w-]+)[^";]*"', listed)) - set(ALONE):
        try:
            installed_version(package)
        except PackageNotFoundError:
            pytest.skip(f"{name} needs {package}, which is not installed here")
    for other in ALONE[name]:
        need(checkout, other)


@pytest.mark.parametrize("name", sorted(ALONE))
def test_distribution_loads_with_the_core_alone(environment, checkout, name):
    need(checkout, name)
    environment.pip("install", "--no-compile", name)
    listing = json.loads(environment.run("elastic", "plugins", "--json"))
    assert (listing["elastic_core"], listing["failed"]) == (VERSION, [])
    plugins = {"elastic-core", name} | ALONE[name]
    if name == "elastic-testing":  # it is only for tests
        plugins = {"elastic-core"}
        environment.run("python", "-c", "import elastic_testing.campaign")
    assert {plugin["distribution"] for plugin in listing["plugins"]} == plugins


@pytest.fixture
def etcd():
    """The address of a separate etcd server."""
    server = pytest.importorskip("elastic_etcd.server").EtcdServer()
    server.start()
    yield server.get_endpoint()
    server.stop()


def test_config_file_selects_etcd_or_reports_it_missing(environment, checkout, etcd, tmp_path):
    need(checkout, "elastic-etcd")
    environment.pip("install", "--no-compile", "elastic-core", "elastic-etcd")
    job = tmp_path / "job"
    job.mkdir()
    (job / "elastic.toml").write_text(f'backend = "etcd"\nendpoint = "{etcd}"\nnnodes = 2\nrdzv-id = "job"\n')
    (job / "train.py").write_text(TRAIN)
    printed = environment.run("elastic", "run", "train.py", cwd=job, times=2)
    assert sorted(re.findall(r"rank \d of \d", printed)) == ["rank 0 of 2", "rank 1 of 2"]
    environment.pip("uninstall", "--yes", "elastic-etcd")
    printed = environment.run("elastic", "run", "train.py", cwd=job, code=2)
    assert "no rendezvous backend named 'etcd' is installed" in printed
    assert "to install it: pip install elastic-etcd\n" in printed
