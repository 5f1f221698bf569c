"""The backend for stock torchrun: `torchrun --rdzv-backend=etcd-v3` (entry-point group `torchrun.handlers`).

While workers run, torchrun's agent only polls the number of waiting nodes, so this handler reports a waiting node as
soon as the round is over. It raises torch's own errors.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ElasticError, Outcome, RendezvousError, RendezvousParameters
from elastic_etcd.backend.create import handler_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.plugin import RoundHandler


def handler() -> Callable[[Any], Any]:
    """Return the creator of handlers, for the entry point."""
    return create


def create(params: Any) -> Any:
    """Create a handler for stock torch's agent from torch's RendezvousParameters, with the options of the backend
    `etcd`. Raises torch's RendezvousError for an invalid endpoint or option."""
    config = {name: value for name, value in params.config.items() if name != "backend"}
    own = RendezvousParameters(
        "etcd", params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr
    ).having(config)
    with _torch_errors():
        return _class()(params.backend, handler_for(own))


def _class() -> Any:
    """Create the handler's class late, because its base class is torch's."""
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

    class EtcdV3Handler(RendezvousHandler):  # type: ignore[misc]
        def __init__(self, name: str, own: RoundHandler) -> None:
            self._name = name
            self._own = own

        def get_backend(self) -> str:
            return self._name

        def get_run_id(self) -> str:
            return self._own.get_run_id()

        @property
        def use_agent_store(self) -> bool:
            return self._own.use_agent_store

        def next_rendezvous(self) -> Any:
            with _torch_errors():
                info = self._own.next_rendezvous()
            where = info.bootstrap_store_info
            address = RendezvousStoreInfo(where.master_addr, where.master_port)
            return RendezvousInfo(info.store, info.rank, info.world_size, address)

        def is_closed(self) -> bool:
            with _torch_errors():
                return self._own.is_closed()

        def set_closed(self) -> None:
            with _torch_errors():
                self._own.set_closed()

        def num_nodes_waiting(self) -> int:
            found = self._own.verdict()
            if found is None or (found.outcome is Outcome.CLOSED and found.succeeded):
                return 0
            return 1

        def shutdown(self) -> bool:
            return self._own.shutdown()

    return EtcdV3Handler


@contextlib.contextmanager
def _torch_errors() -> Iterator[None]:
    from torch.distributed.elastic import rendezvous

    try:
        yield
    except RendezvousError as error:
        kind = getattr(rendezvous, type(error).__name__, rendezvous.RendezvousError)
        raise kind(str(error)) from error
    except ElasticError as error:
        raise rendezvous.RendezvousError(str(error)) from error
