"""This agent's member of the cluster that a job's agents serve. A thread starts the member, has the cluster add it in
place of a lost one, and restarts it when it exits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import (
    Backoff,
    ConfigurationError,
    Problem,
    SystemClock,
    cannot_bind,
    get_logger,
    ip_address,
    is_local_address,
    is_loopback,
    joined_host_port,
    later,
    reached_at,
    resolve_host,
)
from elastic_etcd.server.cluster import (
    Answer,
    Begin,
    Cluster,
    Join,
    Place,
    Wait,
    decide,
    leaving,
    majority_lost,
    members_of,
    shown,
)
from elastic_etcd.server.gateway import UNUSABLE, Gateway, Refused
from elastic_etcd.server.process import ServerProcess, find_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Address, Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.server.process import Binary

_PAUSES = Backoff(first=0.1, longest=1.0)  # seconds between polls, because etcd does not push membership changes
_RESTARTS = Backoff(first=0.5, longest=30.0)  # pauses before restarts, because each restart changes the cluster
_STAYED: Duration = 10.0  # seconds after which a start is considered successful
_LEAVING: Duration = 5.0
_ENDING: Duration = 4.0  # seconds for the answers to a few requests
_NAMED: Duration = 60.0  # seconds for the names of new machines to become resolvable, which usually takes half as long
_BEAT, _ELECTION = "100", "500"  # ms; a lost leader costs two to three election timeouts and a lease's time
_NO_FSYNC = (3, 5)  # the first version with --unsafe-no-fsync


class ServedCluster:
    """The cluster as one agent sees it, and this agent's member. An agent has a member if one of the places is on its
    machine and no other agent there holds this place. `own` is the place, or None until it is known. Thread-safe.

    Args:
        tls: the files for TLS, all of which are set (default: plain text).
        local_addr: address of this machine on which to listen if the name of its place resolves to a loopback address
            here.
        parent: the folder in which the data folder is created (default: the temporary folder).
        resolve: returns the addresses of a host and a port.
    """

    def __init__(
        self,
        cluster: Cluster,
        tls: Security | None = None,
        local_addr: str | None = None,
        parent: str | None = None,
        resolve: Callable[[str, int], list[Address]] = resolve_host,
    ) -> None:
        self._cluster = cluster
        self._tls = tls
        self._gateway = Gateway(tls)
        self._local_addr = local_addr
        self._parent = Path(parent or tempfile.gettempdir()).absolute()  # etcd runs in another folder
        self._resolve = resolve
        self._clock = SystemClock()
        self.own: Place | None = None
        self._holds: socket.socket | None = None
        self._binary: Binary | None = None
        self._process: ServerProcess | None = None
        self._waiting_for = ""  # why our member is not running, for messages
        self._over = threading.Event()
        self._left = self._leaving = self._asked_to_leave = False
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="etcd member", daemon=True)

    @property
    def hosts(self) -> bool:
        """Whether a member runs here and belongs to the cluster."""
        return self._process is not None and not self._process.end and not self._left

    @property
    def pid(self) -> int:
        """Our member's process id, or 0 if no member is running."""
        return self._process.pid if self._process is not None and not self._process.end else 0

    def start(self) -> None:
        """Start a thread that finds our place and serves there. The thread waits until a name resolves to this machine,
        because a pod may start before its name is known. Raises ConfigurationError if there is no etcd binary or no
        folder for the data."""
        if not self._parent.is_dir():
            message = f"the folder {self._parent} does not exist; create it, or remove the option"
            raise ConfigurationError(Problem("--rdzv-conf: serve_folder", message))
        if self._finds_place():
            self._binary = find_binary()
        if self.own is not None or any(ip_address(place.host) is None for place in self._cluster.places):
            self._thread.start()

    def stop(self) -> None:
        """Leave the cluster, so that the last members still have a majority, and stop the member. Idempotent."""
        if not (self._asked_to_leave or self._over.is_set()):
            self.leave(_LEAVING)
        self._over.set()
        with self._changing:
            process = self._process
        if process is not None:
            process.close(at_once=True)  # without a majority, etcd is slow to exit on SIGTERM
        if self._thread.is_alive():
            self._thread.join(_ENDING)  # it may be adding our member, which it then has to remove
        if self._holds is not None:
            self._holds.close()

    def leave(self, timeout: Duration = 0.0) -> bool:
        """Remove our member from the cluster if the other members have a quorum without it. Returns whether it is no
        longer a member. Retries for `timeout` seconds, because members that leave at the same time delay each other."""
        if self.own is None:
            return True
        self._leaving = self._asked_to_leave = True
        attempts, until, left, reason = 0, later(self._clock.now(), timeout), False, ""
        while not left:
            try:
                answers = self._gateway.look(self._others())
                left = self._leave(self.own, answers)
                if not left and all(answer.refused for answer in answers):
                    break  # our member is the last one
                reason = "the remaining members have no quorum"
            except UNUSABLE as error:
                reason = str(error)
            if self._clock.now() >= until:
                break
            self._over.wait(_PAUSES.pause(attempts := attempts + 1))
        self._left, self._leaving = left, False
        if not left and reason:
            get_logger().info("etcd member waits", member=self.own.address, reason=f"could not leave: {reason}")
        return left

    def _leave(self, own: Place, answers: Sequence[Answer]) -> bool:
        """Try to leave once. Returns whether we are no longer a member."""
        way = leaving(self._cluster, own, answers)
        if isinstance(way, bool):
            return way
        if self._gateway.leader(answers) == way.removed:
            self._gateway.at(own, "maintenance/transfer-leadership", targetID=way.heir)
        self._gateway.at(way.through, "cluster/member/remove", ID=way.removed)
        get_logger().info("etcd member left", member=own.address)
        return True

    def diagnosis(self) -> str:
        """Explain why our member does not start or, if that is not the problem, that the majority is lost. The result
        is empty if neither is the case. Asking all members may take a few seconds."""
        return self._waiting_for or majority_lost(self._cluster, self._gateway.look(self._cluster.places))

    def shown(self) -> tuple[str, ...]:
        """Return the status of each member. Asks all members, as `diagnosis` does."""
        answers = self._gateway.look(self._cluster.places)
        return shown(self._cluster, answers, self._gateway.leader(answers))

    # -- the thread

    def _serve(self) -> None:
        try:
            if self._waits_for_place():
                self._binary = self._binary or find_binary()
                self._keep_member()
        except ConfigurationError as error:
            self._waiting_for = str(error)
            get_logger().error("etcd member waits", reason=self._waiting_for)

    def _waits_for_place(self) -> bool:
        """Wait until a place is ours, or until all names resolve and have had time to become known everywhere. Returns
        whether a place is ours."""
        attempts, until = 0, later(self._clock.now(), _NAMED)
        while self.own is None and not self._over.wait(_PAUSES.pause(attempts := attempts + 1)):
            unknown = [place.host for place in self._cluster.places if not self._resolved(place)]
            self._waiting_for = f"unknown host names in --rdzv-endpoint: {', '.join(unknown)}" if unknown else ""
            if self._finds_place() or (self._clock.now() >= until and not unknown):
                break
        return self.own is not None

    def _keep_member(self) -> None:
        assert self.own is not None
        attempts, failures, logged = 0, 0, ""
        while not (self._over.wait(max(_PAUSES.pause(attempts), _RESTARTS.pause(failures))) or self._left):
            attempts += 1
            if self._leaving:
                continue
            try:
                step = self._next(self.own)
                if isinstance(step, Wait):
                    raise Refused(step.reason)
                self._waiting_for = ""
                member, others = self._added(self.own, step) if isinstance(step, Join) else ("", "")
                begun, failures = self._clock.now(), failures + 1
                self._run(self.own, step, member, others)
                attempts, logged = 1, ""
                if self._clock.now() - begun >= _STAYED:
                    failures = 0
            except Exception as error:  # noqa: BLE001 - for example, no thread can be started; try again later
                self._waiting_for = str(error)
                if logged != self._waiting_for:
                    logged = self._waiting_for
                    get_logger().warning("etcd member waits", member=self.own.address, reason=logged)

    def _next(self, own: Place) -> Begin | Join | Wait:
        address = self._listens_at(own)
        for port in (own.port, own.peer_port):
            if why := cannot_bind(address.family, (address.host, port, *address.sockaddr[2:])):
                return Wait(f"port {port} of {address.host}: {why}; ss -ltnp shows which process listens there")
        return decide(self._cluster, own, self._gateway.look(self._others()))

    def _added(self, own: Place, step: Join) -> tuple[str, str]:
        """Add us to the cluster. Returns our new id, and the members as `--initial-cluster` lists them."""
        if step.removed:
            self._gateway.at(step.through, "cluster/member/remove", ID=step.removed)
        answer = self._gateway.at(step.through, "cluster/member/add", peerURLs=[own.peer_url], isLearner=True)
        return str(answer["member"]["ID"]), self._cluster.initial_with(own, members_of(answer["members"]))

    def _run(self, own: Place, step: Begin | Join, member: str, others: str) -> None:
        process, votes = None, isinstance(step, Begin)
        try:
            with self._changing:
                if self._over.is_set() or self._left or self._leaving:
                    return
                process = self._process = self._launched(own, others)
            votes = votes or self._promote(process, own, member)
            process.ended(threading.TIMEOUT_MAX)
            if not (self._over.is_set() or self._left or self._leaving):
                log = process.log.tail()
                self._waiting_for = f"etcd exited ({process.end}): {log[-1] if log else 'its log is empty'}"
                get_logger().error("etcd server lost", how=process.end, log=log)
        finally:
            if process is not None:
                process.close()
            if isinstance(step, Join) and not votes:  # etcd allows one learner, so this one would keep others out
                with contextlib.suppress(*UNUSABLE):
                    self._gateway.at(step.through, "cluster/member/remove", ID=member)

    def _promote(self, process: ServerProcess, own: Place, member: str) -> bool:
        """Ask for a vote until the member has one or has exited. Only the leader knows if the member has caught up.
        Returns whether the member has a vote."""
        attempts = 0
        while not process.ended(_PAUSES.pause(attempts := attempts + 1)):
            for answer in filter(lambda it: it.members, self._gateway.look(self._others())):
                if any(it.id == member and not it.learner for it in answer.members):
                    get_logger().info("etcd member joined", member=own.address)
                    return True
                if answer.healthy and all(it.id != member for it in answer.members):
                    process.close()  # the member was removed
                    return False
                with contextlib.suppress(*UNUSABLE):  # not caught up, or this member cannot forward the request
                    self._gateway.at(answer.place, "cluster/member/promote", ID=member)
        return False

    def _launched(self, own: Place, others: str) -> ServerProcess:
        assert self._binary is not None
        folder = self._folder(own)
        address = self._listens_at(own)
        listens = [f"{own.scheme}://{joined_host_port(address.host, port)}" for port in (own.port, own.peer_port)]
        more = [
            *("--initial-cluster-token", self._cluster.token),
            *("--initial-cluster-state", "existing" if others else "new", "--strict-reconfig-check"),
            *("--heartbeat-interval", _BEAT, "--election-timeout", _ELECTION),
            *(_flags(self._tls) if self._tls else ()),
            *(["--unsafe-no-fsync"] if self._binary.numbers >= _NO_FSYNC else ()),  # the data does not outlive us
        ]
        client, peer = (listens[0], own.url), (listens[1], own.peer_url)
        name, cluster = self._cluster.name(own), others or self._cluster.initial
        launched = ServerProcess(self._binary, name, folder, client, peer, cluster, more)
        where = {"endpoint": own.address, "path": self._binary.path, "version": self._binary.version}
        get_logger().info("etcd server started", **where)
        return launched

    def _folder(self, own: Place) -> Path:
        """Create a folder for this place's data, and remove folders that earlier members left behind when their machine
        failed. This is safe because no other agent here holds this place."""
        mark = hashlib.sha256(f"{self._cluster.token} {own.peer_url} {_network()}".encode()).hexdigest()[:12]
        prefix = f"elastic-etcd-{mark}-"
        for left in self._parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):  # the folder is being removed, or is not accessible
                found = left.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=self._parent))

    # -- where we are

    def _others(self) -> list[Place]:
        """Return the other places in random order. A member may wrongly consider another one inactive, sometimes for
        hours, and then refuses to add members, so the next attempt should ask a different member."""
        others = [place for place in self._cluster.places if place != self.own]
        return random.sample(others, len(others))

    def _finds_place(self) -> bool:
        """Take the first free place on this machine. Returns whether there was one."""
        for place in self._cluster.places:
            is_here = any(map(is_local_address, self._resolved(place)))
            if is_here and (holds := _held(place, self._cluster.token)) is not None:
                self.own, self._holds = place, holds
                return True
        return False

    def _resolved(self, place: Place) -> list[Address]:
        try:
            return self._resolve(place.host, place.port)
        except socket.gaierror:
            return []

    def _listens_at(self, own: Place) -> Address:
        """Return the address at which other members reach our place. On this machine alone, the place's name may
        resolve to a loopback address."""
        found = [address for address in self._resolved(own) if is_local_address(address)]
        beyond = [address for address in found if not address.is_loopback]
        if not found:
            raise Refused(f"the name {own.host} does not resolve to an address of this machine")
        if beyond or is_loopback(own.host):
            return (beyond or found)[0]
        others = [(place.host, place.port) for place in self._others()]
        return self._resolve(self._local_addr or reached_at(others), own.port)[0]


def _network() -> int:
    """Return the id of the network namespace. Another one on this machine may have the same place and folder."""
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0


def _held(place: Place, token: str) -> socket.socket | None:
    """Reserve this place for this process, or return None if another agent of this job in this network namespace has
    it."""
    holds = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holds.bind(f"\0elastic-etcd/{hashlib.sha256(f'{token} {place.peer_url}'.encode()).hexdigest()}")
    except OSError:
        holds.close()
        return None
    return holds


def _flags(tls: Security) -> list[str]:
    """Return the flags for client and peer connections, both of which require a certificate."""
    pairs = (("trusted-ca-file", tls.ca_cert), ("cert-file", tls.cert), ("key-file", tls.key))
    named = [f"--{kind}{name}={path}" for kind in ("", "peer-") for name, path in pairs]
    return ["--client-cert-auth", "--peer-client-cert-auth", *named]
