"""The handler: what the agent talks to. It builds the parts and passes on what is asked: the `Join` brings the node to
a round, its `Part` tells the others, `Errands` wait for that, the keeper with its threads deals with the store."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.interfaces.backend import RosterBackend
from elastic_core.interfaces.handler import RoundHandler
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.errands import Errands
from elastic_core.rendezvous.fence import Fence
from elastic_core.rendezvous.join import Join
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.part import Part
from elastic_core.rendezvous.participant import verdict
from elastic_core.rendezvous.reasons import fenced
from elastic_core.rendezvous.round_stores import PrefixedStores
from elastic_core.rendezvous.settings import (
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_MAX_ATTEMPT,
    RendezvousSettings,
    RendezvousTimeout,
    in_seconds,
)
from elastic_core.rendezvous.state import closed
from elastic_core.rendezvous.state_entries import StateEntries
from elastic_core.rendezvous.threads import KeeperThreads
from elastic_core.rendezvous.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import RendezvousBackend, RoundStores
    from elastic_core.interfaces.handler import RendezvousInfo, Verdict
    from elastic_core.interfaces.store import Store

_SEEING_NODES = 64  # so many nodes that wait may each look who is there whenever they are asked; more look more rarely


class DynamicRendezvousHandler(RoundHandler):
    """Rounds over a backend.

    Args:
        node: what this node tells the others.
        stores: gives every round its store.
        incarnation: tells this start of the agent from others of the same node.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        settings: RendezvousSettings,
        node: Node,
        stores: RoundStores,
        clock: Clock | None = None,
        incarnation: str | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._clock = clock
        self._settings = settings
        self._stores = stores
        self._name = backend.name
        self._node = node
        self._backend = backend if isinstance(backend, RosterBackend) else StateEntries(backend, clock)
        entry = entry_of(node, f"{node.name}/{incarnation or secrets.token_hex(4)}")
        self._views = Views(clock)
        self._keeper = Keeper(self._backend, settings, entry, clock, self._views.take)
        self._threads = KeeperThreads(self._keeper, self._backend, clock)
        self._part = Part(node, entry, self._keeper, self._threads, self._views)
        self._join = Join(settings, self._part, self._views, self._keeper, stores, clock)
        self._errands = Errands(self._keeper, self._threads, self._backend, self._views, self._part, clock)
        self._fence = Fence(settings.window + self._backend.grace, settings.keep_alive_interval)
        self._asked = 0

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Store,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: timedelta | float = KEEP_ALIVE_INTERVAL,
        keep_alive_max_attempt: int = KEEP_ALIVE_MAX_ATTEMPT,
        node: Node | None = None,
        stores: RoundStores | None = None,
    ) -> DynamicRendezvousHandler:
        """A handler for `backend`; the arguments and their order are torch's, up to `keep_alive_max_attempt`.

        Args:
            store: what the rounds' stores are made of: each sees only keys of its own.
            local_addr: the address that this node advertises; unset: its host name.
            node: what it tells the others; unset: a node of one worker, named by host and process.
            stores: another way to give every round its store.

        Raises:
            ValueError: a bound does not hold.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            in_seconds(keep_alive_interval),
            keep_alive_max_attempt,
        )
        address = local_addr or socket.gethostname()
        return cls(backend, settings, node or anonymous_node(), stores or PrefixedStores(store, run_id, address))

    # -- the handler that torch's users know

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        return self._stores.hosted_by_agent

    @property
    def settings(self) -> RendezvousSettings:
        """What it was made with."""
        return self._settings

    def next_rendezvous(self) -> RendezvousInfo:
        self._part.begin()
        self._threads.start()
        return self._join.next_round()

    def is_closed(self) -> bool:
        """As it stands in the store now. Raises RendezvousConnectionError after some seconds without an answer."""
        if not self._known_closed():
            self._threads.start()
            self._keeper.state_changed()
            self._errands.carry_out(self._keeper.amend(lambda state: state))
        return self._known_closed()

    def _known_closed(self) -> bool:
        state = self._views.last.state
        return state is not None and state.closed is not None

    def set_closed(self) -> None:
        """Raises RendezvousConnectionError after some seconds without an answer; it is still closed once there is
        one."""
        self.close("it was closed on request", succeeded=False)

    def num_nodes_waiting(self) -> int:
        """As seen at the last beat by the node that leads; the others look now. Raises RendezvousConnectionError."""
        self._threads.start()
        if not self._keeper.leading:
            self._errands.carry_out(self._keeper.look())
        return self._views.last.waiting

    def shutdown(self) -> bool:
        if not self._part.shut_down():
            return True
        told = True
        if self._threads.started and self._views.last.state is not None:
            self._part.go("it was shut down")
            told = self._errands.say_goodbye()
        ended = self._threads.stop()
        self._stores.release()
        self._backend.close()
        return told and ended

    # -- following a round

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._views.subscribe(listener)

    def verdict(self) -> Verdict | None:
        view = self._views.last
        if not self._part.running or view.state is None:
            return None
        found = verdict(view.state, self._part.key, self._part.round)
        return found or self._fenced()

    def _fenced(self) -> Verdict | None:
        since, now = self._keeper.out_of_reach_since(), self._clock.now()
        if not self._fence.passed(since, now) or since is None:
            return None
        return fenced(now - since, self._settings.window, self._views.last.outage)

    def ask_again(self) -> Instant | None:
        if not self._part.running:
            return None
        due = self._fence.ask_again(self._keeper.out_of_reach_since(), self._clock.now())
        return min(due, self._keeper.notice_silence())

    def progress(self) -> str:
        outage = self._views.last.outage
        if outage is not None:
            return str(outage)
        if not self._keeper.leading and self._asked % (1 + self._settings.max_nodes // _SEEING_NODES) == 0:
            self._keeper.look()
            self._threads.wake()
        self._asked += 1
        return self._join.seen_so_far()

    # -- telling

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        self._part.fail(failures)

    def report_success(self) -> None:
        self._part.succeed()

    def leave(self, reason: str, timeout: Duration) -> bool:
        return not self._threads.started or self._errands.try_it(self._part.leave(reason), timeout)

    def close(self, reason: str, succeeded: bool) -> None:
        """Close the rendezvous, and say why. Blocks until it is done. Raises RendezvousConnectionError."""
        self._threads.start()
        name = self._node.name
        self._errands.carry_out(self._keeper.amend(lambda state: closed(state, name, reason, succeeded)))


def anonymous_node(host: str = "") -> Node:
    """A node that nobody has described: named by its host and process."""
    host = host or socket.gethostname()
    return Node(f"{host}:{os.getpid()}.{secrets.token_hex(6)}", host)
