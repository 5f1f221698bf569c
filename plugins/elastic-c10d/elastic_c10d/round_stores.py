"""What every round gets anew: a server for the workers' store on rank 0's node, and a store that only members share."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from elastic_c10d.server import start_server
from elastic_c10d.torch_store import distributed, lazy_store
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.interfaces.backend import RoundStores
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.support.sockets import PortReservation
from elastic_core.text import truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_c10d.torch_store import Store
    from elastic_core.rendezvous.store_connection import StoreConnector

_NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_FILES = 12  # torch 2.13 opens 10 for a server and its own client


class C10dRoundStores(RoundStores):
    """See `RoundStores`.

    The workers' store is a TCPStore server of its own for every round, in the agent of rank 0, on the very socket that
    was reserved, at the address that is advertised: workers put no prefix on their keys, so no server may see two
    rounds. The members' store is the rendezvous store beneath a prefix that names the round, on a connection made when
    it is first used.

    Args:
        connector: to the rendezvous store.
        run_id: the job.
        address: the address that this node advertises; asked for when it is needed, since it may take a connection
            to know.
        environ: where TORCH_DISABLE_SHARE_RDZV_TCP_STORE is looked up: with it rank 0's worker hosts the workers'
            store, on the port reserved here. None: this process's environment.
    """

    def __init__(
        self,
        connector: StoreConnector,
        run_id: str,
        address: Callable[[], str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._connector = connector
        self._run_id = run_id
        self._address = address
        self._shared = not truth((os.environ if environ is None else environ).get(_NOT_SHARED, "0"))
        self._reserved: PortReservation | None = None
        self._server: Store | None = None
        self._opened: Store | None = None

    @property
    def hosted_by_agent(self) -> bool:
        return self._shared

    def reserve(self) -> RendezvousStoreInfo:
        """Raises ConfigurationError when there is no free port."""
        address = self._address()
        where = address if self._shared else ""  # a worker's server binds all addresses
        fresh = PortReservation(host=where)  # while the last round's is held: else it may be the same port again
        self.release()
        self._reserved = fresh
        return RendezvousStoreInfo(address, fresh.port)

    def open(self, number: int, host: RendezvousStoreInfo, is_host: bool) -> Store:
        if not is_host:
            self.release()
        elif self._shared:
            if self._reserved is None:
                raise RuntimeError(
                    "expected a round that opens once, after its port was reserved; found no reservation"
                )
            _need_files()
            self._server = start_server(self._reserved.take())
            self._reserved = None
        self._opened = lazy_store(lambda: self._members_store(number))
        return self._opened

    def release(self) -> None:
        self._server = self._opened = None
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def _members_store(self, number: int) -> Store:
        torchs = distributed()
        shared = self._connector.connect(aside=True).store
        if isinstance(shared, torchs.FileStore):
            shared = torchs.FileStore(shared.path, -1)  # whose timeout is the members' to set
        store: Store = torchs.PrefixStore(f"elastic/{self._run_id}/round/{number}", shared)
        return store


def _need_files() -> None:
    """Without them torch would abort this process, or try for minutes to reach its own server. Raises
    ConfigurationError."""
    with contextlib.ExitStack() as files:
        try:
            for _ in range(_FILES):
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            expected = f"expected to open {_FILES} files for the workers' store, found: {error.strerror}"
            raise ConfigurationError(Problem("ulimit -n", f"{expected}; raise it where the agent starts")) from error
