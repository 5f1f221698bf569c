"""Real etcd servers for tests, single or as a cluster, on loopback, at reserved ports, with data on tmpfs.

ELASTIC_TEST_ETCD names the binary; the default is the one that `EtcdServer` finds. Call `Servers.close` to end all
servers; a guardian ends them if the test run is killed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from elastic_etcd.client.values import end_of
from elastic_etcd.server.process import find_binary
from elastic_testing import eventually

from elastic_core.support.sockets import PortReservation
from elastic_core.workers.guardian import Guardian
from elastic_core.workers.sessions import start_of

HOST = "127.0.0.1"
LONG = 60.0
SHM = Path("/dev/shm")
_numbers = itertools.count(1)


def binary():
    """The etcd under test."""
    return os.environ.get("ELASTIC_TEST_ETCD") or find_binary().path


@functools.cache
def version():
    """The version of the etcd under test, for example (3, 5)."""
    told = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True, timeout=LONG).stdout
    major, minor = re.search(r"etcd Version: (\d+)\.(\d+)", told).groups()
    return int(major), int(minor)


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, and its certificates for a server and a client."""

    ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str


def make_certificates(folder, *hosts):
    """Make certificates for servers at these hosts; the default is 127.0.0.1, ::1 and localhost."""
    import trustme

    authority = trustme.CA()
    folder = Path(folder)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = {
        "server": authority.issue_cert(*(hosts or (HOST, "::1", "localhost"))),
        "client": authority.issue_cert("client.example", common_name="client"),
    }
    for name, cert in issued.items():
        cert.private_key_pem.write_to_path(folder / f"{name}.key")
        for pem in cert.cert_chain_pems:
            pem.write_to_path(folder / f"{name}.pem", append=True)
    files = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(str(folder / name) for name in files))


@dataclass(frozen=True)
class User:
    """A user who may read and write the keys that begin with `prefix`, or no keys if it is None."""

    name: str
    password: str
    prefix: bytes | None = None


ROOT = User("root", "the-roots-password")


@dataclass(frozen=True)
class Options:
    """Options of servers.

    Args:
        quota: `--quota-backend-bytes`; 0 for the default.
        token_ttl: lifetime of login tokens in seconds; 0 for the default of 5 minutes. Requires etcd 3.5.
        certificates: serve TLS with these; None for plain text.
        client_certificates: require client certificates; needs `certificates`.
        users: if any, enable authentication with these users and ROOT.
        flags: further command-line flags.
    """

    quota: int = 0
    token_ttl: int = 0
    certificates: Certificates | None = None
    client_certificates: bool = False
    users: tuple[User, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def scheme(self):
        return "https" if self.certificates else "http"

    def arguments(self):
        found = list(self.flags)
        if self.quota:
            found += ["--quota-backend-bytes", str(self.quota)]
        if self.token_ttl:
            found += ["--auth-token-ttl", str(self.token_ttl)]
        if self.certificates:
            found += ["--cert-file", self.certificates.cert, "--key-file", self.certificates.key]
        if self.client_certificates:
            found += ["--client-cert-auth", "--trusted-ca-file", self.certificates.ca]
        return found


def _etcdctl(*arguments):
    command = [Path(binary()).with_name("etcdctl"), *arguments]
    subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True, timeout=LONG)


class Member:
    """One server, which keeps its ports and data over restarts. `endpoint` is `host:port`; `url` adds the scheme."""

    def __init__(self, folder, name, options, guardian):
        self.name = name
        self._options = options
        self._guardian = guardian
        self._folder = Path(folder) / name
        self._folder.mkdir(mode=0o700)
        self._token = self._folder.parent.name
        self._ports = [PortReservation() for _ in range(3)]
        self.port, peer, monitor = (reservation.port for reservation in self._ports)
        self.endpoint = f"{HOST}:{self.port}"
        self.url = f"{options.scheme}://{self.endpoint}"
        self.peer = f"http://{HOST}:{peer}"
        self._monitor = f"http://{HOST}:{monitor}"
        self._process = None
        self._command = []

    @property
    def pid(self):
        return self._process.pid

    @property
    def log(self):
        return (self._folder / "log").read_text(errors="replace")

    def start(self, cluster=""):
        """Start the server as a member of `cluster` (`name=peer url,...`), or restart it with its former flags."""
        self._command = self._command or self._arguments(cluster or f"{self.name}={self.peer}")
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
            )
        self._guardian.watch(self.pid, start_of(self.pid))

    def _arguments(self, cluster):
        urls = {
            "--listen-client-urls": self.url,
            "--advertise-client-urls": self.url,
            "--listen-peer-urls": self.peer,
            "--initial-advertise-peer-urls": self.peer,
            "--listen-metrics-urls": self._monitor,
        }
        identity = {
            "--name": self.name,
            "--data-dir": str(self._folder / "data"),
            "--initial-cluster": cluster,
            "--initial-cluster-token": self._token,
            "--logger": "zap",
        }
        pairs = [part for pair in {**identity, **urls}.items() for part in pair]
        return [binary(), *pairs, *self._options.arguments()]

    def stop(self):
        """Send SIGSTOP: the server keeps its connections but does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        process = psutil.Process(self.pid)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED, LONG, f"the stop of {self.name}")

    def cont(self):
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        """Send SIGKILL, and wait for its end."""
        self._end(signal.SIGKILL)

    def terminate(self):
        """Send SIGTERM, and wait for its end."""
        self._end(signal.SIGTERM)

    def restart(self):
        """Restart the server with the same data and ports, and wait until it answers."""
        self.terminate()
        self.start()
        self.wait_healthy()

    def lose_data(self, another=False):
        """Kill the server and delete its data; after `start` it is empty. Clients see the same cluster id, because etcd
        derives it from the flags; with `another`, they see a new one."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        if another:
            self._command = []
            self._token += "-again"

    def save(self):
        """Copy the data for `restore`; this restarts the server."""
        self.terminate()
        shutil.copytree(self._folder / "data", self._folder / "saved")
        self.start()
        self.wait_healthy()

    def restore(self):
        """Kill the server; after `start` it has the saved data."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        shutil.copytree(self._folder / "saved", self._folder / "data")

    def save_snapshot(self):
        """Take a snapshot with etcdctl, for `restore_snapshot`."""
        _etcdctl(f"--endpoints={self.url}", "snapshot", "save", self._folder / "snapshot")

    def restore_snapshot(self):
        """Kill the server; after `start` it is a new cluster with the snapshot's data."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        where = (
            "--data-dir",
            self._folder / "data",
            "--name",
            self.name,
            "--initial-cluster",
            f"{self.name}={self.peer}",
        )
        peer = ("--initial-advertise-peer-urls", self.peer)
        _etcdctl("snapshot", "restore", self._folder / "snapshot", *where, *peer)

    def _end(self, signum):
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
            self._process.send_signal(signum)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LONG)
        self._guardian.forget(self.pid)

    def wait_healthy(self, timeout=LONG):
        """Wait until the server answers and knows a leader."""
        eventually(self._healthy_or_dead, timeout, f"the health of {self.name}, with the log\n{self.log[-3000:]}\n")
        assert self._process.poll() is None, f"{self.name} ended:\n{self.log[-3000:]}"

    def _healthy_or_dead(self):
        return self._process.poll() is not None or '"true"' in self._ask("/health")

    @property
    def is_leader(self):
        """Whether the member believes that it leads; false if it does not answer."""
        return "\netcd_server_is_leader 1\n" in self._ask("/metrics")

    def metric(self, name):
        """The value of one of the server's metrics; 0 if it has none."""
        metrics = eventually(lambda: self._ask("/metrics"), LONG, f"the metrics of {self.name}")
        found = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def _ask(self, path):
        try:
            with _opener(None).open(self._monitor + path, timeout=2) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def call(self, path, token="", **body):
        """POST to the HTTP gateway, without our client. Values of type bytes are sent in base64."""
        text = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in body.items()
        }
        request = urllib.request.Request(
            self.url + path, json.dumps(text).encode(), {"Content-Type": "application/json"}
        )
        if token:
            request.add_header("Authorization", token)
        try:
            with _opener(self._options.certificates).open(request, timeout=LONG) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None

    def close(self):
        self.kill()
        for reservation in self._ports:
            reservation.release()


def _opener(certificates):
    handlers = [urllib.request.ProxyHandler({})]
    if certificates:
        context = ssl.create_default_context(cafile=certificates.ca)
        context.load_cert_chain(certificates.client_cert, certificates.client_key)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


class Cluster:
    """A cluster of members. `endpoints` is `host:port,host:port,...`."""

    def __init__(self, members, options):
        self.members = list(members)
        self.endpoints = ",".join(member.endpoint for member in self.members)
        self._options = options

    def start(self):
        """Start all, and wait until they answer."""
        peers = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in self.members:
            member.start(peers)
        for member in self.members:
            member.wait_healthy()
        if self._options.users:
            _require_passwords(self.members[0], self._options.users)

    def leader(self, timeout=LONG):
        """The current leader; waits for an election."""
        return eventually(self._leader, timeout, "an elected leader")

    def by_role(self):
        """All members, the current leader first. The order may differ at the next call."""
        leader = self.leader()
        return [leader, *(member for member in self.members if member is not leader)]

    def followers(self):
        """All members except the current leader."""
        return self.by_role()[1:]

    def _leader(self):
        return next((member for member in self.members if member.is_leader), None)

    def close(self):
        for member in self.members:
            member.close()


def _require_passwords(member, users):
    member.call("/v3/auth/user/add", name=ROOT.name, password=ROOT.password)
    member.call("/v3/auth/role/add", name="root")
    member.call("/v3/auth/user/grant", user=ROOT.name, role="root")
    for user in users:
        member.call("/v3/auth/user/add", name=user.name, password=user.password)
        if user.prefix is not None:
            allowed = {"permType": "READWRITE", "key": user.prefix, "range_end": end_of(user.prefix)}
            encoded = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in allowed.items()}
            member.call("/v3/auth/role/add", name=user.name)
            member.call("/v3/auth/role/grant", name=user.name, perm=encoded)
            member.call("/v3/auth/user/grant", user=user.name, role=user.name)
    member.call("/v3/auth/enable")


class Servers:
    """Makes servers; `close` ends all of them."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="elastic-etcd-test-", dir=SHM if SHM.is_dir() else None)
        self._guardian = Guardian()
        self._guardian.scratch(self.folder)
        self._made = []

    def cluster(self, size=3, **options):
        """A running cluster with this many members; see `Options`."""
        chosen = Options(**options)
        folder = tempfile.mkdtemp(prefix="c", dir=self.folder)
        made = Cluster((Member(folder, f"m{number}", chosen, self._guardian) for number in range(size)), chosen)
        self._made.append(made)
        made.start()
        return made

    def single(self, **options):
        """A running single server."""
        return self.cluster(1, **options).members[0]

    def close(self):
        for cluster in self._made:
            cluster.close()
        self._guardian.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_servers():
    made = Servers()
    yield made
    made.close()


@pytest.fixture(scope="session")
def etcd(shared_servers):
    """One server for all tests (a `Member`: endpoint, port, url). Each test uses its own `prefix`, and leaves the
    server running and without authentication."""
    return shared_servers.single()


@pytest.fixture
def prefix():
    """A key prefix that no other test uses, as bytes that end with a slash."""
    return f"/test-{next(_numbers)}-{time.time_ns()}/".encode()


@pytest.fixture
def servers():
    """Makes servers for this test alone: `servers.single(quota=..., users=...)`, `servers.cluster(3)`. The options are
    the fields of `Options`."""
    made = Servers()
    yield made
    made.close()
