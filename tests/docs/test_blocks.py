"""Checks that every code block in the docs is run or listed as not run, and runs the blocks that start no job.
`test_block_jobs.py` runs the others. `block_kinds.py` lists how each block is run, or why it is not.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from block_kinds import (
    BLOCKS,
    FOLLOWED,
    NOT_RUN,
    RUN_ELSEWHERE,
    RUN_HERE,
    kind_of,
    of_kind,
    parameters,
)
from blocks import LIMIT_S, ROOT

from elastic_core.config import Sources, read
from elastic_core.hooks import spec
from elastic_core.hooks.discovery import GROUP

CONFIGURATION = "docs/guides/configuration.md"
OURS = {"elastic-core", *(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))}


def test_every_block_is_run_or_listed_as_not_run():
    known = {"no code", "elsewhere", "not run", *RUN_HERE}
    assert [(block.id, block.text) for block in BLOCKS if kind_of(block) not in known] == []


def test_lists_name_only_existing_blocks():
    for page, language, words, _ in RUN_ELSEWHERE:
        assert [b for b in BLOCKS if (page, language) == (b.page, b.language) and words in b.text], words
    assert {block.page for block in BLOCKS} >= set(FOLLOWED)
    for page, words, _ in NOT_RUN:
        assert [block for block in BLOCKS if block.page == page and words in block.text], words
    assert {kind_of(block) for block in BLOCKS} >= RUN_HERE


def test_ci_runs_the_documented_environments():
    lines = {line.removeprefix(".tox/ci/bin/") for line in (ROOT / ".ci" / "run").read_text().splitlines()}
    for page, _, words, by in RUN_ELSEWHERE:
        for block in BLOCKS:
            if by == ".ci/run" and block.page == page and words in block.text:
                assert block.text.strip().removeprefix("python -m pip install tox && ") in lines


def test_hook_examples_equal_the_docstrings():
    """tests/hooks/test_spec.py runs the docstrings' examples."""
    code = [block.text for block in BLOCKS if block.page == "docs/reference/hooks.md" and block.language == "python"]
    own = "\n".join(inspect.getdoc(function) or "" for _, function in inspect.getmembers(spec, inspect.isfunction))
    assert len(code) > 10
    assert [text for text in code if "".join(text.split()) not in "".join(own.split())] == []


def test_install_commands_name_only_our_packages_and_torch():
    lines = [line for block in BLOCKS for line in re.findall(r"^pip install (.*)$", block.text, re.M)]
    named = {re.sub(r"[\['].*?(\]'?|$)", "", word.strip("'")) for line in lines for word in line.split()}
    assert named <= OURS | {"torch"}
    assert len(lines) > 5


@pytest.mark.integration
@pytest.mark.parametrize("block", parameters("python"))
def test_python_block_prints_the_documented_output(block, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(block.text)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    for expected in re.findall(r"print\(.*\)  # ([^:]*\})", block.text):
        assert expected in done.stdout


@pytest.mark.parametrize("block", [case for case in parameters("toml") if "[project" in case.values[0].text])
def test_entry_points_use_the_group_of_the_core(block):
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    ((name, module),) = toml.loads(block.text)["project"]["entry-points"][GROUP].items()
    assert re.fullmatch(r"[\w-]+", name)
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", module)


def test_documented_config_file_is_valid(tmp_path):
    block = next(block for block in of_kind("toml") if block.page == "docs/reference/settings.md")
    (tmp_path / "elastic.toml").write_text(block.text)
    reading = read(Sources(["--nnodes=2", "--rdzv-id=job7"], {}, tmp_path), require_script=False)
    from_file = {origin for origin in reading.origins.values() if origin.startswith("elastic.toml: ")}
    keys = re.findall(r"^([\w-]+) =", block.text.partition("\n[")[0], re.M)
    assert from_file == {f"elastic.toml: {key}" for key in [*keys, "rdzv-conf"]}
    assert reading.settings.rdzv_conf == {"join_timeout": "900"}


@pytest.mark.parametrize("block", [case for case in parameters("toml") if case.values[0].page == CONFIGURATION])
def test_config_files_of_the_configuration_guide_are_valid(block, tmp_path):
    """The whole file is read, and anything unknown in it is an error."""
    (tmp_path / "elastic.toml").write_text(block.text)
    reading = read(Sources(["--rdzv-id=job7"], {}, tmp_path), require_script=False)
    chosen = reading.settings.rdzv_backend
    assert reading.origins["rdzv_endpoint"].startswith("elastic.toml: ")
    expected = {"etcd": {"prefix": "teams/vision"}, "c10d": {"join_timeout": "900"}}
    assert reading.settings.rdzv_conf == expected[chosen]


def manifest(words):
    return pytest.importorskip("yaml").safe_load(next(b.text for b in of_kind("yaml") if words in b.text))


def test_documented_container_is_valid_for_kubernetes():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    (container,) = manifest("containers:")["containers"]
    pod = {"containers": [{"image": "mine", **container}]}
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": pod}
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)


def test_probes_use_the_port_of_the_command():
    (container,) = manifest("containers:")["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["command"][:2] == ["elastic", "run"]
    flags = [*container["command"][2:-1], "--rdzv-endpoint=node0", "--rdzv-id=job7"]
    assert read(Sources(flags, {}, Path("/")), require_script=False).settings.health_port == ports["health"]
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == [{"path": "/livez", "port": "health"}, {"path": "/readyz", "port": "health"}]
    (job,) = manifest("scrape_configs:")["scrape_configs"]
    assert [rule["regex"] for rule in job["relabel_configs"]] == list(ports)


def test_queries_use_existing_metrics():
    (block,) = (block for block in BLOCKS if "sum by (cause)" in block.text)
    documented = (ROOT / "docs" / "reference" / "health.md").read_text()
    for name in set(re.findall(r"\belastic_\w+", block.text)):
        assert re.sub(r"_bucket$", "", name) in documented
