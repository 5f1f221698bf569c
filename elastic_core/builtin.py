"""The core's own plugin. It provides a backend and a store that need neither torch nor a network, worker starters, and
rank policies."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem, RendezvousClosedError
from elastic_core.hooks.records import (
    Option,
    RankPolicyRecord,
    RendezvousBackendRecord,
    StoreRecord,
    WorkerStarterRecord,
)
from elastic_core.hooks.spec import hookimpl
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from elastic_core.support.sockets import without_brackets
from elastic_core.text import natural_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_core.hooks.records import Context
    from elastic_core.interfaces.handler import RendezvousParameters
    from elastic_core.interfaces.node import Candidate
    from elastic_core.interfaces.workers import Starter, Work


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class MemoryStore:
    """A thread-safe, in-memory `interfaces.backend.Store` that treats special cases as torch's stores do. If the key is
    missing, `compare_set` returns a non-empty `expected`. `add` treats an empty value as 0.

    Args:
        timeout: how long `get` and `wait` wait for a key.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        self._timeout = timeout
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def get(self, key: str) -> bytes:
        """Wait until the key is set, and return its value. Raises TimeoutError if the key is not set in time."""
        with self._changed:
            self._await_keys([key], self._timeout)
            return self._values[key]

    def set(self, key: str, value: str | bytes) -> None:
        with self._changed:
            self._put(key, _as_bytes(value))

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            value = int(self._values.get(key) or b"0") + amount
            self._put(key, str(value).encode())
            return value

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        with self._changed:
            if self._values.get(key, b"") == _as_bytes(expected):
                self._put(key, _as_bytes(desired))
            return self._values.get(key, _as_bytes(expected))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set. Raises TimeoutError if a key is not set in time."""
        with self._changed:
            self._await_keys(keys, self._timeout if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _await_keys(self, keys: Sequence[str], timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        if not self._changed.wait_for(lambda: all(key in self._values for key in keys), seconds):
            missing = [key for key in keys if key not in self._values]
            raise TimeoutError(f"the keys {missing} were not set within {seconds:g} s")


_LOOPBACK = "127.0.0.1"


class LocalRendezvousHandler(RendezvousHandler):
    """Forms single-node rounds. The agent hosts the workers' store, and starts a new, empty store for each round.

    Args:
        run_id: the job's id.
        master_addr: the address of the workers' store.
        master_port: the store's port in every round (default: a free port, chosen for each round).
    """

    def __init__(self, run_id: str, master_addr: str = _LOOPBACK, master_port: int | None = None) -> None:
        from elastic_core.support.workers_store import WorkersStore  # imported only for jobs with this backend

        self._run_id = run_id
        self._master_addr = master_addr
        self._master_port = master_port
        self._workers = WorkersStore()
        self._closed = False

    def get_backend(self) -> str:
        return "local"

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Form the next round. Raises RendezvousClosedError, or ConfigurationError if the port is in use."""
        if self._closed:
            raise RendezvousClosedError(f"the job {self._run_id!r} is closed; no further rounds will form")
        where = RendezvousStoreInfo(self._master_addr, self._workers.reserve(self._master_addr, self._master_port or 0))
        self._workers.serve()
        return RendezvousInfo(MemoryStore(), 0, 1, where)

    @property
    def use_agent_store(self) -> bool:
        return self._workers.hosted_by_agent

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._workers.release()
        return True

    @property
    def polled(self) -> bool:
        return False


def create_handler(context: Context, params: RendezvousParameters) -> LocalRendezvousHandler:
    """Create the handler. Raises ConfigurationError if the job allows more than one node or has an endpoint."""
    if problems := list(_problems(params.max_nodes, params.endpoint)):
        raise ConfigurationError(*problems)
    address = params.get("master_addr") or params.local_addr or _LOOPBACK
    return LocalRendezvousHandler(params.run_id, without_brackets(address), params.get_as_int("master_port"))


def _problems(nodes: int, endpoint: str) -> Iterator[Problem]:
    if nodes > 1:
        message = (
            f"the backend 'local' runs single-node jobs only, and --nnodes allows up to {nodes} nodes; "
            "use --nnodes=1, or a multi-node backend such as c10d"
        )
        yield Problem("--rdzv-backend", message)
    if endpoint:
        message = (
            f"the backend 'local' needs no endpoint; remove {endpoint!r} (--master-port is the port of the "
            "workers' store), or choose a backend that uses it, such as c10d"
        )
        yield Problem("--rdzv-endpoint", message)


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            name="local",
            summary="single-node jobs",
            factory=create_handler,
            options=(
                Option(
                    "master_addr", str, None, f"address of the workers' store; by default --local-addr or {_LOOPBACK}"
                ),
                Option("master_port", int, None, "port of the workers' store; by default a free port in each round"),
            ),
            problems=lambda it: _problems(1 if it.standalone else it.nnodes.max, it.rdzv_endpoint),
        )
    ]


@hookimpl
def elastic_stores() -> list[StoreRecord]:
    return [StoreRecord("memory", "an in-memory store for one process", lambda _: MemoryStore(), shared=False)]


def _for_commands(context: Context, work: Work) -> Starter:
    from elastic_core.workers.process import CommandStarter

    if work.function is not None:
        raise _unfit("a script or a command", "a function", "spawn, fork or forkserver")
    return CommandStarter(work.command)


def _for_functions(method: str, context: Context, work: Work) -> Starter:
    from elastic_core.workers.functions import FunctionStarter  # importing multiprocessing takes time

    if work.function is None:
        raise _unfit("a function", "a script or a command", "subprocess")
    return FunctionStarter(work.function, work.args, method)


def _unfit(expected: str, found: str, better: str) -> ConfigurationError:
    return ConfigurationError(Problem("--worker-starter", f"expected {expected} to run, found {found}; use {better}"))


@hookimpl
def elastic_worker_starters() -> list[WorkerStarterRecord]:
    spawn, fork, forkserver = (partial(_for_functions, method) for method in ("spawn", "fork", "forkserver"))
    return [
        WorkerStarterRecord("subprocess", "scripts and commands, each a new program", _for_commands),
        WorkerStarterRecord("spawn", "functions, each in a new Python process", spawn),
        WorkerStarterRecord("fork", "functions, each in a copy of the agent's process", fork, forks=True),
        WorkerStarterRecord("forkserver", "functions, each in a copy of a fresh Python process", forkserver),
    ]


def keep(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates in their current order."""
    return candidates


def by_host(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Sort by host name, with node7 before node66. Machines with adjacent names are usually close in the network, and
    so become neighbors in a ring of ranks. Rank 0 may go to a new node, which has no training state."""
    return sorted(candidates, key=lambda candidate: natural_order(candidate.node.host))


@hookimpl
def elastic_rank_policies() -> list[RankPolicyRecord]:
    return [
        RankPolicyRecord("keep", "nodes keep their ranks; new nodes fill gaps by host name", lambda context: keep),
        RankPolicyRecord("host", "sort all nodes by host name in every round", lambda context: by_host),
    ]
