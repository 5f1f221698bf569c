"""The backend `local`: single-node jobs without a rendezvous. It needs neither torch nor a network.

The agent hosts the workers' store (see `support.workers_store`). Each round gets a new store, which does not contain
the keys of earlier rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.errors import ConfigurationError, Problem, RendezvousClosedError
from elastic_core.hooks import Option, RendezvousBackendRecord, StoreRecord, hookimpl
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from elastic_core.support.addresses import without_brackets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.hooks.context import Context
    from elastic_core.interfaces.handler import RendezvousParameters

_LOOPBACK = "127.0.0.1"


class LocalRendezvousHandler(RendezvousHandler):
    """Forms single-node rounds.

    Args:
        run_id: the job's id.
        master_addr: the address of the workers' store.
        master_port: the store's port in every round (default: a free port, new for every round).
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
    """Create the handler. Raises ConfigurationError if the job may have several nodes, or has an endpoint."""
    problems = list(_problems(params))
    if problems:
        raise ConfigurationError(*problems)
    address = params.get("master_addr") or params.local_addr or _LOOPBACK
    return LocalRendezvousHandler(params.run_id, without_brackets(address), params.get_as_int("master_port"))


def _problems(params: RendezvousParameters) -> Iterator[Problem]:
    if params.max_nodes > 1:
        yield Problem(
            "--rdzv-backend",
            f"the backend 'local' runs single-node jobs only, and --nnodes allows up to {params.max_nodes} nodes; "
            "use --nnodes=1, or a multi-node backend such as c10d",
        )
    if params.endpoint:
        yield Problem(
            "--rdzv-endpoint",
            f"the backend 'local' needs no endpoint; remove {params.endpoint!r} (--master-port is the port of the "
            "workers' store), or choose a backend that uses it, such as c10d",
        )


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
        )
    ]


@hookimpl
def elastic_stores() -> list[StoreRecord]:
    return [StoreRecord("memory", "an in-memory store for one process", lambda _: MemoryStore(), shared=False)]
