"""The handler, which is the agent's interface to the rendezvous. It passes calls to the node through the driver,
reserves a port for the workers' store, and opens the round's store."""

from __future__ import annotations

import contextlib
import secrets
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from elastic_core.clock import SystemClock, earliest, later
from elastic_core.errors import ConfigurationError, InvalidPlugin, Problem, RendezvousError
from elastic_core.hooks.records import KEEP_ALIVE_INTERVAL, KEEP_ALIVE_MAX_ATTEMPT
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousInfo, RendezvousStoreInfo, RoundHandler
from elastic_core.log import get_logger, tolerating
from elastic_core.rendezvous.codec import check_entry
from elastic_core.rendezvous.driver import Driver, Patience
from elastic_core.rendezvous.effects import RefreshRoster
from elastic_core.rendezvous.lifeline import Lifeline
from elastic_core.rendezvous.messages import no_answer
from elastic_core.rendezvous.model import Entry, of_end
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.round_stores import PrefixedStores
from elastic_core.rendezvous.seal import HmacSeal, seal_of
from elastic_core.rendezvous.settings import (
    RendezvousSettings,
    RendezvousTimeout,
    advertised_address,
    in_seconds,
    settings_of,
)
from elastic_core.rendezvous.store_backend import with_roster
from elastic_core.support.sockets import is_remote, reached_at, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import RendezvousBackend, RoundStores, Store
    from elastic_core.interfaces.handler import RendezvousParameters, Verdict
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.node import RankPolicy
    from elastic_core.rendezvous.effects import Request
    from elastic_core.rendezvous.model import State

_PROBE: Duration = 2.0  # seconds for another node to answer a probe
_PROBE_AGAIN: Duration = 30.0  # seconds between probes by a node that cannot reach members of the round
_MOST_PROBED = 64
_SEEING_NODES = 64  # with more nodes, a waiting node does not read the roster on every call of `progress`


class DynamicRendezvousHandler(RoundHandler):
    """A rendezvous handler that forms rounds through a backend.

    Args:
        node: describes this node to other nodes.
        stores: provides each round's store.
        name: the name by which the backend was selected (default: the backend's own name).
        seal: signs what the node writes (default: nothing is signed).

    Raises:
        ConfigurationError: one of the node's names is not in a form that other nodes can read.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        settings: RendezvousSettings,
        node: described.Node,
        stores: RoundStores,
        clock: Clock | None = None,
        patience: Patience = Patience(),
        name: str = "",
        seal: HmacSeal | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._patience = patience
        self._stores = stores
        self._name = name or backend.name
        self._seal = seal or HmacSeal(settings.run_id)
        self._backend = with_roster(backend, self._clock, seal=self._seal)
        self._settings = replace(settings, lease_ttl=self._backend.lease_ttl)
        entry = _checked(Entry.of(node, f"{node.name}/{secrets.token_hex(4)}"))
        self._driver = Driver(Node(entry, self._settings), self._backend, self._clock, patience)
        self._lifeline = Lifeline(
            lambda: self._driver.ask(lambda node, now: node.neighbour),
            lambda key: self._driver.tell(lambda node: node.lost(key)),
        )
        self._driver.subscribe(self._lifeline.look)
        self._shut = self._left = self._stopped = self._hurried = False
        self._turns = 1 + settings.max_nodes // _SEEING_NODES

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
        node: described.Node | None = None,
        stores: RoundStores | None = None,
    ) -> DynamicRendezvousHandler:
        """Create a handler for `backend`. Up to `keep_alive_max_attempt`, the arguments and their order are the same as
        in torch.

        Args:
            store: holds the rounds' stores, each under a separate prefix.
            local_addr: the address that this node advertises (default: the one that its default route uses).
            node: describes this node (default: a node with one worker, named after its host and process).
            stores: provides each round's store, instead of `store`.

        Raises:
            ValueError: an argument is out of bounds.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            in_seconds(keep_alive_interval),
            keep_alive_max_attempt,
        )
        address = local_addr or reached_at
        return cls(backend, settings, node or anonymous_node(), stores or PrefixedStores(store, run_id, address))

    # -- torch's interface

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        return self._stores.hosted_by_agent

    @property
    def hosts_store(self) -> bool:
        return self._backend.hosts_store

    @property
    def lifeline(self) -> int:
        return self._lifeline.descriptor

    @property
    def seal(self) -> HmacSeal:
        return self._seal

    @property
    def settings(self) -> RendezvousSettings:
        return self._settings

    def next_rendezvous(self) -> RendezvousInfo:
        self._driver.ask(lambda node, now: node.begin(now))
        self._driver.start()
        try:
            self._come_to(lambda node: node.state)
            where, unreachable = self._stores.reserve(), self._unreachable()
            lifeline = self._lifeline.listen(where.master_addr)
            self._driver.tell(lambda node: node.want(where, unreachable, lifeline))
            return self._info(self._formed(where, unreachable))
        except BaseException:
            self._driver.tell(lambda node: node.step_back())
            raise

    def _formed(self, where: RendezvousStoreInfo, unreachable: tuple[str, ...]) -> State:
        """Wait until this node is a member of the next round, and return the state at that time."""
        while True:
            again = later(self._clock.now(), _PROBE_AGAIN) if unreachable else None
            state = self._come_to(lambda node: node.membership.formed if node.membership.running else None, again)
            if state is not None:
                return state
            unreachable = self._unreachable()
            self._driver.tell(partial(Node.reaches, unreachable=unreachable))

    def _come_to(self, found: Callable[[Node], State | None], until: Instant | None = None) -> State | None:
        """Wait until `found` returns a state, and return that state. Returns None if `until` comes first. Raises
        RendezvousError if this node can no longer join the round that it wants."""

        def look(node: Node, now: Instant) -> State | None:
            obstacle = node.obstacle(now)
            if obstacle is not None:
                raise obstacle
            return found(node)

        return self._driver.wait(look, lambda node: earliest(node.join_deadline, until))

    def _unreachable(self) -> tuple[str, ...]:
        """Return the keys of the suspected members that this node cannot reach."""
        suspects, host = self._driver.ask(lambda node, now: (node.suspects(_MOST_PROBED), node.host))
        places = {seat.key: RendezvousStoreInfo(seat.member.address, seat.port) for seat in suspects}
        if host in places:
            places[host] = self._stores.seen_from_here(places[host])
        silent = unreachable({key: (at.master_addr, at.master_port) for key, at in places.items()}, _PROBE)
        return tuple(seat.key for seat in suspects if seat.key in silent)

    def _info(self, state: State) -> RendezvousInfo:
        rank = state.rank(self._driver.ask(lambda node, now: node.key))
        assert rank is not None
        host = state.seats[0]
        where = self._stores.seen_from_here(RendezvousStoreInfo(host.member.address, host.port))
        store = self._stores.open(state.round.name, where, rank == 0)
        obstacle = self._driver.ask(lambda node, now: node.obstacle(now))
        if obstacle is not None:  # the node left while the store was opened
            self._stores.release()
            raise obstacle
        agreed = described.Round(state.round.number, state.seats.members, state.restarts, state.reason, of_end(state))
        return RendezvousInfo(store, rank, len(state.seats), where, agreed)

    def is_closed(self) -> bool:
        """Return whether the job is closed, according to the store's current state. Raises RendezvousConnectionError if
        the store does not answer within a few seconds."""
        if not self._known_closed():
            self._carry_out(lambda node: node.reread())
        return self._known_closed()

    def _known_closed(self) -> bool:
        return self._driver.ask(lambda node, now: node.state is not None and node.state.closed is not None)

    def set_closed(self) -> None:
        """Close the job. Raises RendezvousConnectionError if the store does not answer within a few seconds. Even after
        this error, the node closes the job as soon as the store answers."""
        self.close("it was closed on request", succeeded=False)

    def close(self, reason: str, succeeded: bool) -> None:
        """Close the job like `set_closed`, but with a reason and an outcome."""
        self._carry_out(lambda node: node.close(reason, succeeded))

    def num_nodes_waiting(self) -> int:
        """Return the number of waiting nodes that fit into the next round. The leader knows the number from its last
        heartbeat. Any other node reads the roster first. Raises RendezvousConnectionError if the store does not
        answer."""
        if not self._leads():
            self._carry_out(lambda node: node.request(RefreshRoster()))
        return self._driver.ask(lambda node, now: node.waiting())

    def _leads(self) -> bool:
        return self._driver.ask(lambda node, now: node.election.leading)

    def _carry_out(self, order: Callable[[Node], Request]) -> None:
        """Make a request to the node, and wait until it is carried out. Raises an error if the request fails or takes
        too long."""
        self._driver.start()
        if self._shut or not self._driver.carry_out(order, self._patience.answer):
            obstacle, outage, fault = self._driver.ask(
                lambda node, now: (node.obstacle(now), node.connection.outage, node.fault)
            )
            raise obstacle if self._shut and obstacle else no_answer(outage, fault, self._patience.answer)

    def shutdown(self) -> bool:
        if not self._shut:
            self._shut = True
            with contextlib.ExitStack() as ending:  # carry out all steps, even if one fails
                ending.callback(self._stores.release)
                ending.callback(self._lifeline.close)
                ending.callback(self._stop_driver)
                self._left = self._leave_for_good()
        return self._left and self._stopped

    def _leave_for_good(self) -> bool:
        """Leave the job for good. Returns whether other nodes can learn that this node has left."""
        if not self._driver.ask(lambda node, now: node.shut_down()) or not self._driver.started:
            return True
        if self._hurried:
            return False
        away = self._driver.ask(lambda node, now: node.connection.outage is not None)
        patience = self._patience.outage if away else self._patience.answer
        left = self._driver.carry_out(lambda node: node.retire("it was shut down"), patience)
        self.hand_over()
        if self._backend.hosts_store:  # wait for a limited time until all nodes have learned how the job ended
            until = later(self._clock.now(), self._patience.linger)
            self._driver.tell(lambda node: node.linger())
            self._driver.wait(lambda node, now: self._hurried or not node.lingers or None, lambda node: until)
        return left

    def _stop_driver(self) -> None:
        self._stopped = self._driver.stop()

    def hand_over(self) -> bool:
        if not self._backend.hosts_store or self._known_closed():
            return not self._backend.hosts_store
        patience = self._patience.handover
        if self._nobody_stays():
            return False
        try:
            limit = 2 * patience + self._patience.answer
            self._driver.carry_out(lambda node: node.hand_over(patience), limit, lambda: self._hurried)
        except RendezvousError as error:  # the other nodes will react as if this one were lost
            get_logger().warning("rendezvous fault", reason=f"could not hand over the store to another node: {error}")
        return not self._backend.hosts_store

    def _nobody_stays(self) -> bool:
        """Return whether all other nodes were also asked to leave. If so, no node needs the store after this one has
        left."""
        if self._driver.ask(lambda node, now: node.heirs):
            return False
        known = self._driver.carry_out(lambda node: node.request(RefreshRoster()), self._patience.answer)
        return known and not self._driver.ask(lambda node, now: node.heirs)

    def hurry(self) -> None:
        self._hurried = True
        self._driver.tell(lambda node: None)  # wake the waiting thread

    # -- following a round

    def introduce(self, role: str, local_world_size: int, max_restarts: int, stop_timeout: Duration) -> None:
        def describe(node: Node, now: Instant) -> None:
            node.entry = _checked(
                replace(
                    node.entry,
                    role=role,
                    local_world_size=local_world_size,
                    max_restarts=max_restarts,
                    stop_timeout=stop_timeout,
                )
            )

        self._driver.ask(describe)

    def rank_by(self, policy: RankPolicy) -> None:
        def set_policy(node: Node, now: Instant) -> None:
            node.settings = replace(node.settings, rank_policy=partial(_in_order, policy))

        self._driver.ask(set_policy)

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._driver.subscribe(listener)

    def verdict(self) -> Verdict | None:
        grace = self._backend.grace
        return self._driver.ask(lambda node, now: node.verdict(now, grace))

    def ask_again(self) -> Instant | None:
        grace = self._backend.grace

        def due(node: Node, now: Instant) -> Instant | None:
            running = node.membership.running
            return min(node.notice(now), node.connection.fence_at(grace, now)) if running else None

        return self._driver.ask(due)

    def stop_by(self) -> Instant | None:
        grace = self._backend.grace
        return self._driver.ask(lambda node, now: node.stop_by(now, grace))

    def unfinished(self) -> Sequence[int] | None:
        return self._driver.ask(lambda node, now: node.unfinished())

    def progress(self) -> str:
        outage = self._driver.ask(lambda node, now: node.connection.outage)
        if outage is not None:
            return str(outage)
        if not self._leads() and secrets.randbelow(self._turns) == 0:
            self._driver.tell(lambda node: node.request(RefreshRoster()))
        return self._driver.ask(lambda node, now: node.progress())

    # -- reports

    def report_stop(self, stop: StopStatus) -> None:
        self._driver.tell(lambda node: node.report_stop(stop))

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        self._driver.tell(lambda node: node.fail(failures))

    def report_success(self) -> None:
        self._driver.tell(lambda node: node.succeed())

    def leave(self, reason: str, timeout: Duration) -> bool:
        if not self._driver.started or self._driver.ask(lambda node, now: node.state is None):  # it has no entry yet
            self._driver.ask(lambda node, now: node.leave(reason))
            return True
        return self._driver.carry_out(lambda node: node.leave(reason), timeout)


def _in_order(policy: RankPolicy, candidates: Sequence[described.Candidate]) -> Sequence[described.Candidate]:
    """Return the candidates in the policy's order. If the policy fails, log the error and keep the given order."""
    given, kept = tuple(candidates), "the nodes keep their ranks, because it"
    with tolerating("plugin failed", kept, part="rank policy"):
        found = list(policy(given))
        if sorted(map(id, found)) == sorted(map(id, given)):
            return found
        raise InvalidPlugin(f"{kept} did not return the {len(given)} nodes that it was given (found: {len(found)})")
    return given


def _checked(entry: Entry) -> Entry:
    """Return the entry unchanged. Raises ConfigurationError if other nodes could not read it."""
    try:
        check_entry(entry)
    except ValueError as error:
        raise ConfigurationError(Problem("node", str(error))) from error
    return entry


def anonymous_node() -> described.Node:
    """Return the description of a node that is named after its host and process."""
    host = socket.gethostname()
    return described.Node(described.generated_name(host), host)


def create_handler(
    store: Store | None,
    backend: RendezvousBackend,
    params: RendezvousParameters,
    stores: RoundStores | None = None,
    name: str = "",
) -> DynamicRendezvousHandler:
    """Create a handler that uses `backend` and the options in `params` (see `BACKEND_OPTIONS`). The node advertises
    `params.local_addr` (default: this machine's address on the route to the endpoint's hosts).

    Args:
        store: holds the rounds' stores; None if `stores` is given.
        stores: provides each round's store.
        name: the result of `get_backend()` (default: the backend's name). Plugins with aliases pass `params.backend`.

    Raises:
        ConfigurationError: an option is out of bounds.
        ValueError: neither `store` nor `stores` is given.
    """
    node = params.node or anonymous_node()
    if stores is None and store is None:
        raise ValueError("pass either a store or an object that provides each round's store")
    given = stores or PrefixedStores(cast("Store", store), params.run_id, partial(advertised_address, params))
    settings, seal = settings_of(params), seal_of(params)
    if not seal.signs and params.max_nodes > 1 and is_remote(params.endpoint):
        advice = "any client of the endpoint can change or end this job; give every node the same --rdzv-secret-file"
        get_logger().warning("rendezvous not signed", endpoint=params.endpoint, advice=advice)
    return DynamicRendezvousHandler(backend, settings, node, given, name=name, seal=seal)
