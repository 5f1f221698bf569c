"""Lists how each code block in the docs is run: by `test_blocks.py` or `test_block_jobs.py`, by another test, or not at
all, with the reason. A new block that is in none of the lists fails `test_every_block_is_run_or_listed_as_not_run`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from blocks import all_blocks

BLOCKS = all_blocks()
NO_CODE = {"text", "mermaid", "{eval-rst}"}
"""What tools say, diagrams (drawn from the code), directives (the docs are built in CI)."""

RUN_ELSEWHERE = [
    ("docs/guides/gpu.md", "python", "set_device", "tests/docs/test_gpu.py"),
    ("docs/guides/gpu.md", "indented", "elastic run", "tests/docs/test_gpu.py"),
    ("docs/guides/checkpointing.md", "python", "STEPS", "tests/docs/test_checkpointing.py"),
    ("docs/guides/checkpointing.md", "indented", "elastic run", "tests/docs/test_checkpointing.py"),
    ("docs/start/install.md", "indented", "python -m pip install . ", "tests/packaging/test_checkout.py"),
    ("docs/start/install.md", "indented", "elastic --version", "tests/packaging/test_checkout.py"),
    ("docs/start/quickstart.md", "python", "import os", "tests/docs/test_start.py"),
    ("docs/start/quickstart.md", "indented", "elastic run", "tests/docs/test_start.py"),
    ("docs/start/two-machines.md", "python", "import os", "tests/docs/test_start.py"),
    ("docs/start/two-machines.md", "indented", "elastic run", "tests/docs/test_start.py"),
    ("docs/guides/etcd.md", "sh", "", "plugins/elastic-etcd/tests/test_docs.py"),
    ("docs/guides/etcd.md", "indented", "torchrun --nnodes", "plugins/elastic-etcd/tests/test_torchrun.py"),
    ("docs/extend/plugins.md", "indented", "--pager=alice", "tests/docs/test_plugins.py"),
    ("docs/extend/plugins.md", "python", "NotificationContract)", "tests/docs/test_plugins.py"),
    ("docs/extend/watchdogs.md", "toml", "[project]", "tests/docs/test_watchdogs.py"),
    ("docs/extend/watchdogs.md", "python", "class SilenceWatchdog", "tests/docs/test_watchdogs.py"),
    ("docs/extend/watchdogs.md", "indented", "elastic run --watchdog=silence", "tests/docs/test_watchdogs.py"),
    ("docs/extend/watchdogs.md", "python", "WatchdogContract)", "tests/docs/test_watchdogs.py"),
    ("docs/extend/backends.md", "python", "class BoardBackend", "tests/docs/test_backends.py"),
    ("docs/extend/backends.md", "python", "BackendContract)", "tests/docs/test_backends.py"),
    ("docs/guides/slurm.md", "indented", "sbatch", "tests/examples/test_slurm.py"),
    ("docs/guides/slurm.md", "indented", "--notices=slurm", "plugins/elastic-notices/tests/test_slurm_cluster.py"),
    ("docs/guides/kubernetes.md", "indented", "PET_MASTER_ADDR", "tests/examples/test_kubernetes.py"),
    ("docs/guides/security.md", "bash", "openssl rand", "tests/docs/test_security.py"),
    ("docs/reference/commands.md", "sh", "", "tests/docs/test_commands.py"),
    ("docs/project/releasing.md", "indented", "tools/version.py", "tests/packaging/test_version.py"),
    ("docs/project/releasing.md", "indented", "tox run -e packages", ".ci/run"),
    ("README.md", "indented", "python -m pip install . ", "tests/packaging/test_checkout.py"),
    ("CONTRIBUTING.md", "indented", "tox run -e demo", ".ci/run"),
    ("CONTRIBUTING.md", "indented", "tox run -e py", ".ci/run"),
    ("README.md", "indented", "tox run -e demo", ".ci/run"),
    ("README.md", "indented", "tox run -e py", ".ci/run"),
]
"""Page, language, words of it, and what runs it: as it stands, or with stand-ins for what a test has not. Without words
all blocks of the page in that language. A test gets them from the page, by `block_of` or `blocks_on`."""

FOLLOWED = {
    "docs/reference/hooks.md": "tests/hooks/test_spec.py",  # the docstrings that they come from are run
    "examples/elastic-sqlite/README.md": "tests/examples/test_sqlite.py",
}
"""Pages of which another test reads every block."""

NOT_RUN = [
    ("docs/project/support.md", "elastic doctor", "four machines; test_jobs_store.py of elastic-doctor has two"),
    ("CONTRIBUTING.md", "python -m venv", "an index; tests/packaging installs the wheels"),
    ("docs/start/two-machines.md", "kill -KILL %1", "a terminal's job; tests/docs/test_start.py kills its agent"),
    ("docs/start/install.md", "pip install torch", "torch's own index"),
    ("docs/guides/slurm.md", "scontrol show hostnames", "Slurm; tests/examples/test_slurm.py runs the whole script"),
    ("docs/start/install.md", "python -m venv", "an index; tests/packaging/test_checkout.py makes one without pip"),
    ("CONTRIBUTING.md", "python -m pytest", "a test that is run anyway"),
    ("design/tests.md", "tox run -e unit", "minutes; .ci/run runs it with the tier above"),
    ("docs/guides/etcd.md", "etcdctl --endpoints", "a lost host; test_job_served.py of elastic-etcd does the same"),
    ("docs/project/benchmarks.md", "tox run -e bench", "hours; tests/benchmarks has parts of it"),
    ("docs/project/benchmarks.md", "benchmarks.gpu", "a GPU; tests/benchmarks/test_gpu_rehearsal.py runs it without"),
    ("docs/project/campaign.md", "tox run -e campaign", "half an hour; tests/e2e/test_campaign.py has shorter ones"),
    ("docs/guides/doctor.md", "srun elastic doctor", "Slurm; in test_jobs_store.py of elastic-doctor, two meet"),
    ("docs/guides/monitoring.md", "ssh -L", "another machine, and a cluster of Kubernetes"),
    ("docs/guides/monitoring.md", "sum by (cause)", "a Prometheus server; test_blocks.py looks up its metrics"),
    ("docs/guides/operating.md", "elastic explain", "a job; the status of docs/guides/several-nodes.md is run"),
    ("docs/guides/slurm.md", "elastic drain gpu08", "a job; the same of docs/guides/several-nodes.md is run"),
    ("docs/guides/debugging-a-hang.md", "py-spy dump", "py-spy, and the right to trace; tests/workers covers its use"),
    ("docs/guides/kubernetes.md", "kubectl apply", "a cluster; tests/examples/test_kubernetes.py reads the manifest"),
    ("docs/project/architecture.md", "tox run -e unit", "minutes; CI runs the same tests by `tox run -e py`"),
    ("docs/project/architecture.md", "cli.py  ", "a tree of files"),
    ("docs/concepts/what-survives.md", "benchmarks.losses", "network name spaces, which need root, and much time"),
    ("docs/project/releasing.md", "tox run -e audit", "an index; test_lock.py lists the vulnerabilities that matter"),
    ("docs/project/releasing.md", "tox run -e sbom", "a release; test_lock.py checks requirements/run.txt"),
    ("docs/project/releasing.md", "tox run -e lock", "an index; tests/packaging/test_lock.py checks its output"),
    ("plugins/README.md", "plugins/<dist>/", "a tree of files"),
    ("docs/guides/preemption.md", "--notices=aws", "a spot instance; the tests of elastic-notices have a mock of it"),
    ("plugins/elastic-notices/README.md", "--notices=aws", "the same"),
    ("plugins/elastic-notices/README.md", "printf", "a file that is read; test_files.py of elastic-notices decodes it"),
    ("plugins/elastic-notices/README.md", '"reason"', "an answer; test_url.py of elastic-notices decodes such answers"),
    ("plugins/elastic-otel/README.md", "OTEL_EXPORTER", "a collector; the tests of the plugin export to memory"),
]
"""Page, words of it, and what it would need."""

KINDS = {
    "from elastic_core.watchdog import expires": "of train.py",
    "token_file=token": "token",
    "srun --ntasks=4 --ntasks-per-node=1 elastic explain": "explain",
    "--log-dir": "logs",
    "logs/latest": "logs",
}
"""Words of blocks that are run in a way of their own; others, by their first words."""

TORCH = r"node0|torchrun|import torch"
"""What a block has that needs torch."""

NEEDS = {
    "elastic doctor": "elastic_doctor",
    "node0": "elastic_c10d",
    "etcd": "elastic_etcd",
    "etcd-legacy": "elastic_etcd_legacy",
    "--health-port": "elastic_http_health",
    "--watchdog=file": "elastic_file_timer",
}


def elsewhere(block):
    """Return what runs the block, or None."""
    for page, language, words, test in RUN_ELSEWHERE:
        if (block.page, block.language) == (page, language) and words in block.text:
            return test
    return FOLLOWED.get(block.page)


def not_run(block):
    return any((block.page, True) == (page, words in block.text) for page, words, _ in NOT_RUN)


def without_pip(text):
    """Return the commands without those that install packages, which tests/packaging runs."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("pip install "))


def first_words(block):
    return without_pip(block.text).split()[:2]


def of_kind(kind):
    return [block for block in BLOCKS if kind_of(block) == kind]


def kind_of(block):
    """Return how the block is run."""
    if block.language in NO_CODE:
        return "no code"
    if elsewhere(block):
        return "elsewhere"
    if not_run(block):
        return "not run"
    if block.language in ("yaml", "toml", "python"):
        return block.language
    for words, kind in KINDS.items():
        if words in block.text:
            return kind
    words = first_words(block)
    return " ".join(words) if words[:1] in (["elastic"], ["torchrun"]) else "undecided"


def parameters(kind):
    """Return a test case for each block, with marks for what it needs. Jobs with several nodes are nightly, except
    those on two pages."""
    cases = {block.text: block for block in reversed(of_kind(kind))}
    return [pytest.param(block, id=block.id, marks=_marks(block)) for block in cases.values()]


def _marks(block):
    torch = [pytest.mark.torch] if re.search(TORCH, block.text) else []
    later = "--nnodes" in block.text and block.page not in ("README.md", "docs/guides/etcd.md")
    return [*torch, pytest.mark.nightly] if later else torch


RUN_HERE = {
    *("yaml", "toml", "python", *KINDS.values(), "elastic run", "torchrun --nproc-per-node"),
    *("elastic doctor", "elastic serve", "elastic status", "elastic drain", "elastic stop"),
}
"""The kinds that `test_blocks.py` and `test_block_jobs.py` run."""


def need(text):
    for word, package in NEEDS.items():
        if word in text and not find_spec(package):
            pytest.skip(f"needs {package}")
