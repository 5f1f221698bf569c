"""Every code block of the pages is run, here or elsewhere; or it is listed here, with the reason why not.

A new block that none of the lists knows fails `test_somebody_has_decided_about_every_block`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from blocks import LIMIT_S, PAGES, ROOT, Block, Shell, all_blocks, blocks_of, free_port

from elastic_core.config import read
from elastic_core.hooks import spec
from elastic_core.hooks.discovery import GROUP

BLOCKS = all_blocks()
NO_CODE = {"text", "mermaid", "{eval-rst}"}
"""What tools say, diagrams (drawn from the code), directives (the docs are built in CI)."""

RUN_ELSEWHERE = [
    ("docs/etcd.md", "sh", "", "plugins/elastic-etcd/tests/test_docs.py"),
    ("docs/etcd.md", "indented", "torchrun --nnodes", "plugins/elastic-etcd/tests/test_torchrun.py"),
    ("docs/slurm.md", "indented", "sbatch", "tests/examples/test_slurm.py"),
    ("docs/reference/commands.md", "sh", "", "tests/docs/test_commands.py"),
    ("docs/releasing.md", "indented", "tools/version.py", "tests/packaging/test_version.py"),
    ("docs/releasing.md", "indented", "tox run -e packages", ".ci/run"),
    ("README.md", "indented", "python -m pip install . ", "tests/packaging/test_checkout.py"),
    ("README.md", "indented", "tox run -e demo", ".ci/run"),
    ("README.md", "indented", "tox run -e py", ".ci/run"),
]
"""Page, language, words of it, and what runs it: as it stands, or with stand-ins for what a test has not. Without words
all blocks of the page in that language. A test gets them from the page, by `block_of` or `blocks_on`."""

FOLLOWED = {
    "docs/reference/hooks.md": "tests/hooks/test_spec.py",  # where they come from, the docstrings, is run
    "examples/elastic-sqlite/README.md": "tests/examples/test_sqlite.py",
}
"""Pages of which another test reads every block."""

NOT_RUN = [
    ("docs/doctor.md", "srun elastic doctor", "Slurm; in tests/e2e/test_doctor.py doctors meet without it"),
    ("docs/health.md", "ssh -L", "another machine, and a cluster of Kubernetes"),
    ("docs/health.md", "sum by (cause)", "a server of Prometheus; the metrics it names are looked up below"),
    ("docs/slurm.md", "elastic drain gpu08", "a job of that name; the same of docs/several-nodes.md is run"),
    ("docs/debugging-a-hang.md", "py-spy dump", "py-spy, and the right to trace; tests/workers has what uses it"),
    ("docs/kubernetes.md", "kubectl apply", "a cluster; tests/examples/test_kubernetes.py looks at the manifest"),
    ("docs/onboarding.md", "cli.py, __main__.py", "a tree of files"),
    ("plugins/README.md", "plugins/<dist>/", "a tree of files"),
    ("docs/design/rendezvous.md", "a wants to leave", "a story that the explorer tells"),
]
"""Page, words of it, and what it would need."""

KINDS = {
    "from elastic_core.watchdog import expires": "of train.py",
    "token_file=token": "token",
    "srun --ntasks=4 --ntasks-per-node=1 elastic explain": "explain",
    "--log-dir": "logs",
    "logs/latest": "logs",
}
"""Words of blocks that are run below in a way of their own; others, by their first words."""

OURS = {"elastic-core", *(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))}
TRAIN = """
import os, sys
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]}", flush=True)
"""
WAIT = "import pathlib, time\nwhile not pathlib.Path('done').exists(): time.sleep(0.05)\n"
NEEDS = {
    "node0": "elastic_c10d",
    "etcd": "elastic_etcd",
    "etcd-legacy": "elastic_etcd_legacy",
    "--health-port": "elastic_http_health",
    "--watchdog=file": "elastic_file_timer",
}


def elsewhere(block):
    """What runs it, or None."""
    for page, language, words, test in RUN_ELSEWHERE:
        if (block.page, block.language) == (page, language) and words in block.text:
            return test
    return FOLLOWED.get(block.page)


def not_run(block):
    return any((block.page, True) == (page, words in block.text) for page, words, _ in NOT_RUN)


def without_pip(text):
    """Its commands, without the lines that install: tests/packaging installs, and here everything is installed."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("pip install "))


def first_words(block):
    return without_pip(block.text).split()[:2]


def of_kind(kind):
    return [block for block in BLOCKS if kind_of(block) == kind]


def kind_of(block):
    """How it is run."""
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
    """One case for each text, with the mark of what it needs."""
    cases = {block.text: block for block in reversed(of_kind(kind))}
    return [
        pytest.param(block, id=block.id, marks=[pytest.mark.torch] if re.search("node0|torchrun", text) else [])
        for text, block in cases.items()
    ]


RUN_BELOW = {
    *("yaml", "toml", "python", *KINDS.values(), "elastic run", "torchrun --nproc-per-node"),
    *("elastic doctor", "elastic serve", "elastic status", "elastic drain"),
}


def test_somebody_has_decided_about_every_block():
    known = {"no code", "elsewhere", "not run", *RUN_BELOW}
    assert [(block.id, block.text) for block in BLOCKS if kind_of(block) not in known] == []


@pytest.mark.parametrize(("language", "text"), [("indented", "make all\n"), ("sh", "curl node0\n"), ("", "x\n")])
def test_a_new_block_is_undecided(language, text):
    assert kind_of(Block("docs/new.md", 1, language, text)) == "undecided"


def test_the_lists_have_nothing_that_is_no_longer_there():
    for page, language, words, _ in RUN_ELSEWHERE:
        assert [b for b in BLOCKS if (page, language) == (b.page, b.language) and words in b.text], words
    assert {block.page for block in BLOCKS} >= set(FOLLOWED)
    for page, words, _ in NOT_RUN:
        assert [block for block in BLOCKS if block.page == page and words in block.text], words
    assert {kind_of(block) for block in BLOCKS} >= RUN_BELOW


TESTS = sorted({test for *_, test in RUN_ELSEWHERE if test.endswith(".py")})


@pytest.mark.parametrize("test", TESTS)
def test_what_is_run_elsewhere_is_got_from_the_page_there(test):
    listed = {(page, words or language) for page, language, words, by in RUN_ELSEWHERE if by == test}
    assert got_by((ROOT / test).read_text()) == listed


def got_by(code):
    """What it asks `block_of` and `blocks_on` for."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    fetching = [call for call in calls if getattr(call.func, "id", "") in ("block_of", "blocks_on")]
    return {tuple(ast.literal_eval(argument) for argument in call.args) for call in fetching}


def test_who_names_a_page_without_getting_its_block_is_found():
    assert got_by('# block_of("docs/a.md", "x")\nopen("docs/a.md")\n') == set()
    assert got_by('def test():\n    run(block_of("docs/a.md", "x"))\n') == {("docs/a.md", "x")}


def test_what_ci_is_said_to_run_it_runs():
    lines = {line.removeprefix(".tox/ci/bin/") for line in (ROOT / ".ci" / "run").read_text().splitlines()}
    for page, _, words, by in RUN_ELSEWHERE:
        for block in BLOCKS:
            if by == ".ci/run" and block.page == page and words in block.text:
                assert block.text.strip().removeprefix("python -m pip install tox && ") in lines


def test_the_examples_of_the_hooks_are_those_of_the_docstrings():
    """tests/hooks/test_spec.py runs them there."""
    code = [block.text for block in BLOCKS if block.page == "docs/reference/hooks.md" and block.language == "python"]
    own = "\n".join(inspect.getdoc(function) or "" for _, function in inspect.getmembers(spec, inspect.isfunction))
    assert len(code) > 10
    assert [text for text in code if "".join(text.split()) not in "".join(own.split())] == []


def test_blocks_are_found():
    page = "# A\n\n    one\n    two\n\n    three\n- b\n    no\n\n  ```sh\n  x\n  ```\n```\ny\n```\n"
    found = [(block.line, block.language, block.text) for block in blocks_of("page", page)]
    assert found == [(3, "indented", "one\ntwo\n\nthree\n"), (10, "sh", "x\n"), (13, "", "y\n")]


def test_what_is_to_be_installed_is_ours_or_torch():
    lines = [line for block in BLOCKS for line in re.findall(r"^pip install (.*)$", block.text, re.M)]
    named = {re.sub(r"[\['].*?(\]'?|$)", "", word.strip("'")) for line in lines for word in line.split()}
    assert named <= OURS | {"torch"}
    assert len(lines) > 5


def test_the_contract_of_the_page_is_kept(shell):
    """The block is run as a script below; here its tests are run too."""
    (block,) = (block for block in BLOCKS if block.page == "docs/plugins.md" and "BackendContract)" in block.text)
    (shell.folder / "test_mine.py").write_text(block.text)
    said = shell.run(f"'{sys.executable}' -m pytest -q -p no:cacheprovider test_mine.py")
    assert re.search(r"\d{2} passed", said)
    assert "failed" not in said


def test_the_contract_of_health_endpoints_on_the_page_is_kept(shell):
    """With the endpoint of our own as `MyEndpoint`, and the one question that the page leaves open."""
    need("--health-port")
    (block,) = (block for block in BLOCKS if block.page == "docs/plugins.md" and "HealthContract)" in block.text)
    text = block.text.replace("Probe(...)", "asked(Probe, port, what)")
    assert text.count("asked(") == text.count("MyEndpoint(view") == 1
    (shell.folder / "test_mine.py").write_text(ENDPOINT + text)
    said = shell.run(f"'{sys.executable}' -m pytest -q -p no:cacheprovider test_mine.py")
    assert re.search(r"\d{2} passed", said)
    assert "failed" not in said


ENDPOINT = """
import http.client

from elastic_core.testing import installed_health_endpoint


def MyEndpoint(view, port, timeout):
    return installed_health_endpoint("http", view, port, timeout)


def asked(probe, port, what):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", {"alive": "/livez", "ready": "/readyz", "status": "/status"}[what])
        answer = connection.getresponse()
        return probe(answer.status == 200, answer.read().decode())
    finally:
        connection.close()

"""


@pytest.mark.parametrize("block", parameters("python"))
def test_python_runs_and_prints_what_it_says(block, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(block.text)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    for expected in re.findall(r"print\(.*\)  # ([^:]*\})", block.text):
        assert expected in done.stdout


@pytest.mark.parametrize("block", parameters("toml"))
def test_entry_points_are_of_the_group_that_is_looked_up(block):
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    ((name, module),) = toml.loads(block.text)["project"]["entry-points"][GROUP].items()
    assert re.fullmatch(r"[\w-]+", name)
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", module)


def manifest(words):
    return pytest.importorskip("yaml").safe_load(next(b.text for b in of_kind("yaml") if words in b.text))


def test_kubernetes_takes_the_container_of_the_page():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    (container,) = manifest("containers:")["containers"]
    pod = {"containers": [{"image": "mine", **container}]}
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": pod}
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)


def test_its_command_and_probes_fit_together():
    (container,) = manifest("containers:")["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["command"][:2] == ["elastic", "run"]
    flags = [*container["command"][2:-1], "--rdzv-endpoint=node0", "--rdzv-id=job7"]
    assert read(flags, {}, Path("/"), require_script=False).settings.health_port == ports["health"]
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == [{"path": "/livez", "port": "health"}, {"path": "/readyz", "port": "health"}]
    (job,) = manifest("scrape_configs:")["scrape_configs"]
    assert [rule["regex"] for rule in job["relabel_configs"]] == list(ports)


def test_every_manifest_is_looked_at():
    assert [b.id for b in of_kind("yaml") if "containers:" not in b.text and "scrape_configs:" not in b.text] == []


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    yield made
    made.close()


@pytest.fixture
def etcd():
    """A function that starts a server of this test's own, at most one."""
    servers = []

    def endpoint():
        servers.append(pytest.importorskip("elastic_etcd.server").EtcdServer())
        servers[-1].start()
        return servers[-1].get_endpoint()

    yield endpoint
    for server in servers:
        server.stop()


def need(text):
    for word, package in NEEDS.items():
        if word in text and not find_spec(package):
            pytest.skip(f"needs {package}")


def here(text, etcd=None):
    """The commands with the addresses of other machines replaced by free ports of this one."""
    text = re.sub(r"(node0)?:29400\b", f"127.0.0.1:{free_port()}", without_pip(text))
    text = text.replace("--master-addr node0", "--master-addr 127.0.0.1").replace("29500", str(free_port()))
    text = text.replace("node7", "127.0.0.1").replace("8080", str(free_port()))
    return re.sub(r"etcd0:2379(,etcd\d:2379)*", lambda _: etcd(), text)


@pytest.mark.parametrize("block", parameters("elastic run"))
def test_a_job_runs(block, shell, etcd):
    need(block.text)
    several = "--nnodes" in block.text
    command = here(block.text, etcd)
    quick = {"ELASTIC_RDZV_CONF": "last_call_timeout=0.5"} if ":4" in block.text else {}  # two of at most four
    if "--node-rank" in command:
        other = shell.start(command.replace("--node-rank 0", "--node-rank 1"))
        said = shell.run(command) + other.ended()
    else:
        said = shell.run(command, times=2 if several else 1, **quick)
    workers = int((re.findall(r"--nproc-per-node[= ](\d+)", command) or ["1"])[0]) * (2 if several else 1)
    assert sorted(re.findall(r"rank (\d+) of", said), key=int) == [str(rank) for rank in range(workers)]
    assert said.count(f"of {workers}: ['--epochs', '10']") == (workers if "--epochs" in command else 0)


@pytest.mark.parametrize("block", parameters("torchrun --nproc-per-node"))
def test_torchrun_and_elastic_run_the_same_command(block, shell):
    theirs, ours = (shell.run(line) for line in block.text.splitlines())
    line = r"rank \d of 8: \['--epochs', '10'\]"
    assert sorted(re.findall(line, theirs)) == sorted(re.findall(line, ours))
    assert len(re.findall(line, ours)) == 8


@pytest.mark.parametrize("block", parameters("of train.py"))
def test_a_script_with_timers_runs(block, shell):
    of_page = [other for other in BLOCKS if other.page == block.page and "--watchdog=file" in other.text]
    need(of_page[0].text)
    (shell.folder / "train.py").write_text(f"batch = 'a step'\nbatches = [batch]\nstep = print\n{block.text}")
    assert "a step" in shell.run(here(of_page[0].text))


@pytest.mark.parametrize("block", parameters("elastic doctor"))
def test_the_doctor_looks(block, shell):
    need(block.text)
    said = shell.run(here(block.text))
    assert "this run needs" in said


(SERVE,) = of_kind("elastic serve")
JOB = next(block for block in of_kind("elastic run") if block.page == SERVE.page and "node0:29400" in block.text)


@pytest.mark.torch
def test_a_job_is_looked_at_and_a_node_taken_out(shell):
    """The blocks of one page, in another order: serve, run, status, drain. Other pages have the same commands."""
    page = [block for block in BLOCKS if block.page == SERVE.page]
    status, drain = (next(b for b in page if b.text.startswith(f"elastic {word}")) for word in ("status", "drain"))
    assert {block.text for block in of_kind("elastic status") + of_kind("elastic drain")} == {status.text, drain.text}
    serve, run, status, drain = here("\0".join(without_pip(b.text) for b in (SERVE, JOB, status, drain))).split("\0")
    (shell.folder / "train.py").write_text(WAIT)
    server = shell.start(serve)
    server.says("store served")
    quick = {"ELASTIC_RDZV_CONF": "last_call_timeout=0.5"}
    agents = [shell.start(run, ELASTIC_NODE_ID=f"node{number}", **quick) for number in (1, 2, 3)]
    for agent in agents:
        agent.says("workers started")
    assert "node3" in shell.run(status)
    shell.run(drain)
    agents[-1].ended()
    shown = next(block.text for block in page if block.text.startswith("job job7"))
    assert_like(shown, shell.run(status), r" {2,}|node\d|[\d.]+|at \S+\)")
    (shell.folder / "done").touch()
    for agent in agents[:-1]:
        agent.ended()


@pytest.mark.parametrize("block", parameters("explain"))
def test_what_slurm_gives_is_explained(block, shell):
    """`srun` starts one of the tasks here."""
    step = "SLURM_JOB_ID=123456 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_NUM_NODES=4"
    srun = f'srun() {{ shift 2; {step} SLURM_NNODES=4 SLURM_NODEID=2 SLURM_PROCID=2 "$@"; }}\n'
    said = shell.run(srun + block.text)
    assert re.findall(r"^(\w+) .*SLURM_\w+", said, re.M) == ["nnodes", "node_rank", "rdzv_id"]


FAILS_ONCE = """
import os, sys
where = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
print(where, flush=True)
if where == "rank 1 of 2" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("no samples")
"""


def test_logs_are_where_the_page_says(shell):
    """All blocks of the page in their order, with a script that fails once; and the tree that it shows."""
    page = [block for block in BLOCKS if block.page == "docs/logs.md"]
    tree = next(block.text for block in page if "logs/latest -> " in block.text)
    (shell.folder / "train.py").write_text(FAILS_ONCE)
    to_files, look, prefixed, as_json = of_kind("logs")
    assert "[default0]:rank 0 of 2" in shell.run(to_files.text)
    for line in tree.splitlines():
        path, _, target = line.partition(" -> ")
        assert (shell.folder / path).exists()
        assert not target or (shell.folder / path).readlink().as_posix() == target.replace("round-1", "round-2")
    assert re.search(r"rank-1.err.ValueError: no samples", said := shell.run(look.text)), said
    assert "rank 0 of 2" in said
    (shell.folder / "train.py").write_text(TRAIN)
    assert f"[{socket.gethostname()} 1] rank 1 of 2" in shell.run(prefixed.text)
    assert "\nround formed\nworkers started\nagent finished\n" in shell.run(as_json.text)


def assert_like(shown, said, differs):
    """Each line that a page shows is there, whatever stands where `differs` matches."""
    for line in shown.splitlines():
        fixed = [part for part in re.sub(differs, "\0", line).split("\0") if part.strip()]
        assert any(has_in_order(found, fixed) for found in said.splitlines()), (line, said)


def has_in_order(line, parts):
    for part in parts:
        _, found, line = line.partition(part)
        if not found:
            return False
    return True


HANGS = """
import itertools, os, threading, time


def next_batch():
    threading.Event().wait()


if os.environ["RANK"] == "1":
    next_batch()
for step in itertools.count():
    print(step, flush=True)
    time.sleep(0.1)
"""


def test_a_hang_is_shown_as_on_the_page(shell):
    """The first command, with a shorter timeout; and each line of what the page shows, but for numbers and paths."""
    block, shown = [block for block in BLOCKS if block.page == "docs/debugging-a-hang.md"][:2]
    (shell.folder / "train.py").write_text(HANGS)
    quick = {"ELASTIC_HANG_WARMUP": "0", "ELASTIC_RDZV_ID": "job7"}
    said = shell.run(block.text.replace("600", "2"), code=1, **quick)
    assert_like(shown.text, said, r"0x\w+|\d+|on node|File .*, line")
    assert "in next_batch" in json.loads((shell.folder / "result.json").read_text())["first_failure"]["stack"]


@pytest.mark.parametrize("block", parameters("token"))
def test_who_has_the_token_may_look(block, shell):
    need(block.text)
    token, run, ask = here(block.text).splitlines()
    (shell.folder / "train.py").write_text(WAIT)
    shell.run(token)
    job = shell.start(run)
    job.says("workers started")
    assert '"run_id"' in shell.run(ask)
    (shell.folder / "done").touch()
    job.ended()


def test_queries_name_metrics_that_there_are():
    (block,) = (block for block in BLOCKS if "sum by (cause)" in block.text)
    documented = (ROOT / block.page).read_text().replace(block.text, "")
    for name in set(re.findall(r"\belastic_\w+", block.text)):
        assert re.sub(r"_bucket$", "", name) in documented


def test_pages_are_all_looked_at():
    some = ("README.md", "docs/running.md", "docs/reference/hooks.md", "plugins/elastic-etcd/README.md")
    assert {ROOT / page for page in some} <= set(PAGES)
