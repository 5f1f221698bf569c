"""A store in memory with clients that have connections to it: it can be out of reach, and begin anew, empty."""

from __future__ import annotations

from datetime import timedelta

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import FactoryConnector
from elastic_core.rendezvous.versions import Keys

KEYS = Keys("job", "0123456789abcdef")


class Place:
    """Attributes:
    store: what stands there.
    follows: whether connections lead to a store that began anew.
    away: whether nobody reaches it. Connections that stood break with that.
    connections, closed: how many were made, and how many of them were closed.
    """

    def __init__(self):
        self.store = MemoryStore(timedelta(seconds=30))
        self.away = self.follows = False
        self.connections = self.closed = 0
        self._made = []
        self._traps = {}

    def begin(self):
        """The store's first epoch, so that its keys are known."""
        self.store.set(KEYS.id, KEYS.epoch)
        return self

    def restart(self):
        """It is empty, and connections to the one before break."""
        self.store = MemoryStore(timedelta(seconds=30))

    def empty(self):
        """It is empty, and the connections stand, as those of a client that reconnects by itself."""
        self.follows = True
        self.restart()

    def before(self, operation, key, act):
        """Call `act` before the next operation of this name on this key is carried out."""
        self._traps[operation, str((key,))] = lambda *arguments: act()

    def lose(self, operation, key, lands):
        """The connection breaks with that operation; before or after it is carried out."""

        def broken(*arguments):
            if lands:
                getattr(self.store, operation)(*arguments)
            raise BrokenPipeError("the connection broke")

        self._traps[operation, str((key,))] = broken

    def entered(self, operation, arguments):
        """Somebody is about to do this."""
        act = self._traps.pop((operation, str(arguments[:1])), None)
        if act is not None:
            act(*arguments)

    def client(self):
        if self.away:
            raise ConnectionRefusedError("connection refused")
        self.connections += 1
        return Client(self)

    def backend(self, run_id="job", clock=None, **options):
        connector = FactoryConnector(self.client, "a place in memory")
        self._made.append(StoreBackend(connector, run_id, "store", clock, **options))
        return self._made[-1]

    def close(self):
        for backend in self._made:
            backend.close()


class Client:
    """One connection to the place."""

    def __init__(self, place):
        self._place, self._store = place, place.store

    def close(self):
        self._place.closed += 1

    def __getattr__(self, name):
        getattr(self._store, name)  # an operation that it has

        def call(*args):
            if self._place.follows:
                self._store = self._place.store
            if self._place.away or self._store is not self._place.store:
                raise BrokenPipeError("the connection broke")
            self._place.entered(name, args)
            return getattr(self._store, name)(*args)

        return call
