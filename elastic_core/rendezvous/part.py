"""The part that a node takes in its job: the round it is in or wants, and what it tells the others of that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.errors import ElasticError, RendezvousGracefulExitError
from elastic_core.rendezvous.blame import is_certain
from elastic_core.rendezvous.codec import bounded
from elastic_core.rendezvous.state import Cause, Report, State, ended, failed, left, left_done

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import RendezvousStoreInfo
    from elastic_core.interfaces.node import Node
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.keeper import Keeper
    from elastic_core.rendezvous.threads import KeeperThreads
    from elastic_core.rendezvous.ticket import Ticket
    from elastic_core.rendezvous.views import Views


class Part:
    """What is told is carried out by the keeper; nothing here waits. May be used from several threads: a node leaves in
    one while it joins in another.

    Args:
        entry: of this node, before its first round.

    Attributes:
        round: the round it is in or was in last; 0 before the first.
        running: whether it is in a round.
        left: whether it has told that it takes part no longer.
        shut: whether it never will again.
    """

    def __init__(self, node: Node, entry: Entry, keeper: Keeper, threads: KeeperThreads, views: Views) -> None:
        self.round = 0
        self.running = False
        self.left = False
        self.shut = False
        self._done = False
        self._node = node
        self._entry = entry
        self._keeper = keeper
        self._threads = threads
        self._views = views

    @property
    def key(self) -> str:
        """Of its entry."""
        return self._entry.key

    @property
    def after(self) -> int:
        """The round after which it wants one."""
        return self._entry.after

    def begin(self) -> None:
        """It wants a round, whatever was before."""
        self.running = self._done = self.left = False

    def check(self) -> None:
        """Raise what no waiting can cure."""
        if self.shut:
            raise RendezvousGracefulExitError("the rendezvous was shut down on this node")
        fault = self._views.last.fault
        if isinstance(fault, ElasticError):
            raise fault

    def want(self, after: int, done: int = 0, where: RendezvousStoreInfo | None = None) -> None:
        """Announce that it wants a round after this one, or is done with one."""
        entry = replace(self._entry, after=after, done=done)
        with self._views.changed:
            if self.shut or self.left:
                return  # whoever waits finds out why; no entry may come after the withdrawal
            self._entry = replace(entry, address=where.master_addr, port=where.master_port) if where else entry
            self._keeper.want(self._entry)
        self._threads.wake()

    def give_up_round(self) -> None:
        """Who wants a new round while its last one runs ends that for all, as users of torch's handlers expect: they
        report nothing. Does nothing after a report, or when the round is over."""
        key, name, number = self.key, self._node.name, self.round

        def over(state: State) -> State:
            running = state.open and state.round == number and state.seated(key)
            return ended(state, Cause.LEFT, name, f"{name} wants a new round") if running else state

        if number:
            self._keeper.amend(over)

    def step_back(self) -> None:
        """It does not come to the round that it wanted."""
        self._keeper.withdraw()
        self._threads.wake()

    def fail(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Its workers failed."""
        told = tuple(bounded(failure) for failure in failures.values())
        report = Report(self.key, self._node.name, told, is_certain(failures))
        number, limit = self.round, self._node.max_restarts
        self._keeper.amend(lambda state: failed(state, number, report, limit))
        self._threads.wake()

    def succeed(self) -> None:
        """Its workers are done."""
        self._done = True
        if not self.left:
            self.want(after=self.after, done=self.round)

    def leave(self, reason: str) -> Ticket:
        """Tell the others that it takes part no longer, and withdraw; a join in another thread ends."""
        with self._views.changed:
            self.go(reason)
            ticket = self._keeper.withdraw()
            self._views.changed.notify_all()
        return ticket

    def go(self, reason: str) -> None:
        """Tell the others, once, that it takes part no longer."""
        if self.left:
            return
        self.left = True
        key, number, done = self.key, self.round, self._done
        self._keeper.amend(lambda state: left_done(state, key, number) if done else left(state, key, reason))

    def shut_down(self) -> bool:
        """It never takes part again. Whether it did until now."""
        with self._views.changed:
            before, self.shut = self.shut, True
            self._views.changed.notify_all()
        return not before
