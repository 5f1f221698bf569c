"""Prometheus answers the queries of the Grafana dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from blocks import free_port

pytestmark = pytest.mark.integration
pytest.importorskip("elastic_http_health", reason="the tests on other Pythons run without it")

ROOT = Path(__file__).parents[2]
PANELS = json.loads((ROOT / "examples" / "grafana" / "dashboard.json").read_text())["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
# Panels without data in a healthy job that has just started.
MAY_BE_EMPTY = {"Health checks that are not ok", "Recovery time by part, 90th percentile"}
LIMIT_S = 90


def test_dashboard_uses_documented_metrics():
    page = (ROOT / "docs" / "reference" / "health.md").read_text()
    documented = set(re.findall(r"`(elastic_\w+)`", page))
    used = {re.sub("_bucket$", "", name) for _, query in QUERIES for name in re.findall(r"elastic_\w+", query)}
    assert used <= documented


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        return answer.read().decode()


@pytest.fixture
def prometheus(tmp_path):
    """Scrapes a job of one node; its port."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus")
    (tmp_path / "elastic.toml").touch()
    health, port = free_port(), free_port()
    job = [sys.executable, "-m", "elastic_core", "run", f"--health-port={health}", "--no-python", "sleep", "600"]
    target = {"static_configs": [{"targets": [f"127.0.0.1:{health}"]}], "job_name": "elastic"}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    started = [subprocess.Popen(job, cwd=tmp_path)]
    try:
        started.append(subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=tmp_path))
        yield port
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(LIMIT_S)


def result(port, query):
    path = f"/api/v1/query?query={urllib.parse.quote(query.replace('$run_id', '.*'))}"
    try:
        return json.loads(ask(port, path))["data"]["result"]
    except (OSError, ConnectionError):
        return []


def test_prometheus_answers_every_query(prometheus):
    missing = dict(QUERIES)
    until = time.monotonic() + LIMIT_S
    while not set(missing) <= MAY_BE_EMPTY and time.monotonic() < until:
        time.sleep(0.5)
        missing = {title: query for title, query in missing.items() if not result(prometheus, query)}
    assert set(missing) <= MAY_BE_EMPTY
    for query in missing.values():  # accepted, though it finds nothing
        assert json.loads(ask(prometheus, f"/api/v1/query?query={urllib.parse.quote(query)}"))["status"] == "success"
