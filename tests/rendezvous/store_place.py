"""A store in memory whose clients have connections: it can become unreachable, or restart empty."""

from __future__ import annotations

from datetime import timedelta

from elastic_core.builtin import MemoryStore
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import FactoryConnector
from elastic_core.rendezvous.versions import Keys

KEYS = Keys("job", "0123456789abcdef")


class Place:
    """Attributes:
    store: the current store.
    follows: whether open connections reach a restarted store.
    away: whether the store is unreachable. Open connections break then.
    connections, closed: how many connections were opened, and how many of them were closed.
    """

    def __init__(self):
        self.store = MemoryStore(timedelta(seconds=30))
        self.away = self.follows = False
        self.connections = self.closed = 0
        self._made = []
        self._traps = {}

    def begin(self):
        """Create the store's first epoch, so that its keys are known."""
        self.store.set(KEYS.id, KEYS.epoch)
        return self

    def restart(self, data=None):
        """Start the store again with this data, or empty, and break all open connections."""
        self.store = MemoryStore(timedelta(seconds=30))
        for key, value in (data or {}).items():
            self.store.set(key, value)

    def empty(self, data=None):
        """Like `restart`, but keep open connections, like a client that reconnects by itself."""
        self.follows = True
        self.restart(data)

    def before(self, operation, key, act):
        """Call `act` just before the next such operation on this key runs."""
        self._traps[operation, str((key,))] = lambda *arguments: act()

    def lose(self, operation, key, lands, *expected):
        """Break the connection at that operation: after it ran if `lands`, else before. `expected` is the value that a
        compare_set has to expect (default: any)."""

        def broken(*arguments):
            if lands:
                getattr(self.store, operation)(*arguments)
            raise BrokenPipeError("the connection broke")

        self._traps[operation, str((key, *expected))] = broken

    def entered(self, operation, arguments):
        """Run the trap set for this operation, if there is one."""
        for length in (1, 2):
            act = self._traps.pop((operation, str(arguments[:length])), None)
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


def shown(backend):
    """The keys and entries in the roster."""
    return [(seen.key, seen.entry) for seen in backend.roster()]


class Client:
    """One connection to the store."""

    def __init__(self, place):
        self._place, self._store = place, place.store

    def close(self):
        self._place.closed += 1

    def __getattr__(self, name):
        getattr(self._store, name)  # raises AttributeError if the store has no such operation

        def call(*args):
            if self._place.follows:
                self._store = self._place.store
            if self._place.away or self._store is not self._place.store:
                raise BrokenPipeError("the connection broke")
            self._place.entered(name, args)
            return getattr(self._store, name)(*args)

        return call
