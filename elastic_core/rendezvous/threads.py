"""The threads of a handler: one takes the keeper's turns, one waits for the state, and where this node leads, one
waits for the roster. They sleep until something is due or happens.

While nodes gather for the first round the keeper's thread waits for news itself, from beat to beat, and the others are
started when a round has run for a moment: a join then costs one thread, and nothing is handed from one to the next. The
moment is the longer the more nodes there are: their agents, and maybe their threads, all have to do at once then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.errors import RendezvousError
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import RosterBackend, Token
    from elastic_core.rendezvous.keeper import Keeper

_LONGEST_WAIT: Duration = 30.0  # a bound for waits for news, so that a lost connection is noticed
_AFTER_ERROR: Duration = 1.0  # a watcher whose connection fails leaves it to the keeper to find out why
_FIRST_PAUSE: Duration = 0.01  # after news that brought nothing new; twice as long each time, up to _AFTER_ERROR
_MANY = 20
_ENDING: Duration = 2.0
_BREATH: Duration = 0.1  # for each that ends, also when time has run out: this process may have slept, and they with it
_SETTLING: Duration = 0.001  # for each node of a round that has just formed


class KeeperThreads:
    """See above. All methods may be called from any thread; `start` and `stop` any number of times."""

    def __init__(self, keeper: Keeper, backend: RosterBackend, clock: Clock) -> None:
        self._keeper = keeper
        self._backend = backend
        self._clock = clock
        self._condition = threading.Condition()
        self._woken = False
        self._begun = 0
        self._turns = 0
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._settled: Instant | None = None
        self._useless = 0
        self._before: tuple[Token | None, int] = (None, 0)
        self._watches_state = False
        self._watches_roster = False
        self._lingers = False
        self._told: set[type[Exception]] = set()

    @property
    def started(self) -> bool:
        return bool(self._threads)

    @property
    def stopped(self) -> bool:
        """Whether nothing that is asked for will be done any more."""
        return self._stopping

    def start(self) -> None:
        with self._condition:
            if not self._threads and not self._stopping:
                self._begin(self._keep, "keeper")

    def wake(self) -> None:
        """Something was asked for: take a turn now."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def stop(self) -> bool:
        """End them. One that hangs in a call of the store's is left behind; whether there was none."""
        with self._condition:
            self._stopping = True
            threads = list(self._threads)
            self._condition.notify_all()
        if threads:
            self._backend.close()
        until = later(self._clock.now(), _ENDING)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(until - self._clock.now(), _BREATH))
        return not any(thread.is_alive() for thread in threads)

    def wait_for_roster(self, until: Instant) -> None:
        """Until the keeper has taken another turn: the roster's watcher wakes it when somebody came or went, from now
        on also where this node does not lead."""
        with self._condition:
            turns = self._turns
            self._lingers = True
            self._watch_roster()
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._turns != turns or self._stopping, max(until - self._clock.now(), 0.0)
            )

    def _begin(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"rendezvous-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self) -> None:
        while not self._stopping:
            try:
                self._take_turn()
            except Exception as error:  # noqa: BLE001 - such as no thread to be had; without beats the node is gone
                self._tell(error)
                self._pause(_MANY)

    def _take_turn(self) -> None:
        with self._condition:
            self._begun += 1
        due = self._keeper.turn()
        with self._condition:
            self._turns += 1
            self._condition.notify_all()
            gathers = self._gathers()
            woken = self._woken and gathers
            self._woken = self._woken and not gathers
        if gathers and not woken:
            self._wait_for_news(due)
        elif not gathers:
            self._rest(due)

    def _rest(self, due: Instant) -> None:
        with self._condition:
            if self._keeper.view.announced is not None:
                self._watch_state()
            if self._keeper.leading:
                self._watch_roster()
            if not self._woken and not self._stopping:
                self._condition.wait_for(
                    lambda: self._woken or self._stopping, min(max(due - self._clock.now(), 0.0), _LONGEST_WAIT)
                )
            self._woken = False

    def _gathers(self) -> bool:
        """Whether this node waits for the first round that it sees. What it is asked for meanwhile waits until its next
        beat at the latest."""
        view = self._keeper.view
        if self._watches_state or view.announced is None or view.state is None or view.state.closed:
            return False
        if view.state.open and self._settled is None:
            self._settled = later(self._clock.now(), _SETTLING * len(view.state.seats))
        return self._settled is None or self._clock.now() < self._settled

    def _wait_for_news(self, due: Instant) -> None:
        due = due if self._settled is None else min(due, self._settled)
        limit = min(max(due - self._clock.now(), 0.0), _LONGEST_WAIT)
        if limit == 0.0:
            return
        self._pause(self._useless)
        before = self._known()
        if self._keeper.leading:
            news = self._changed(lambda: self._backend.wait_for_roster(limit, self._keeper.view.lacking))
            self._keeper.state_changed()  # whatever woke it: there is nobody else who would see that
            self._keeper.roster_changed()
        else:
            news = self._changed(lambda: self._backend.wait_for_state(before[0], limit))
            if news:
                self._keeper.state_changed()
        self._useless = self._useless + 1 if news and before == self._before else 0
        self._before = before

    def _known(self) -> tuple[Token | None, int]:
        """Changes when news has been taken up."""
        return self._keeper.view.token, len(self._keeper.seen[0])

    def _watch_state(self) -> None:
        if not self._watches_state and not self._stopping:
            self._watches_state = True
            self._begin(self._follow_state, "state")

    def _watch_roster(self) -> None:
        if not self._watches_roster and not self._stopping:
            self._watches_roster = True
            self._begin(self._follow_roster, "roster")

    def _follow_state(self) -> None:
        useless = 0
        while not self._stopping:
            token = self._keeper.view.token
            if self._changed(lambda: self._backend.wait_for_state(token, _LONGEST_WAIT)):  # noqa: B023 - used at once
                self._keeper.state_changed()
                self._pass_on()
                useless = useless + 1 if self._keeper.view.token == token else 0
                self._pause(useless)

    def _follow_roster(self) -> None:
        useless = 0
        while not self._stopping:
            if not self._wants_roster():
                with self._condition:
                    self._condition.wait_for(lambda: self._wants_roster() or self._stopping, _LONGEST_WAIT)
                continue
            before, _ = self._keeper.seen
            if self._changed(lambda: self._backend.wait_for_roster(_LONGEST_WAIT, self._keeper.view.lacking)):
                self._keeper.roster_changed()
                self._pass_on()
                useless = useless + 1 if self._keeper.seen[0] == before else 0
                self._pause(useless)

    def _wants_roster(self) -> bool:
        return self._keeper.leading or self._lingers

    def _changed(self, wait: Callable[[], bool]) -> bool:
        try:
            return wait()
        except Exception as error:  # noqa: BLE001 - a node without its watchers is deaf, and nobody would see why
            if not isinstance(error, RendezvousError) and not self._stopping:
                self._tell(error)
            self._pause(_MANY)
            return False

    def _tell(self, error: Exception) -> None:
        with self._condition:
            known = type(error) in self._told
            self._told.add(type(error))
        if not known:
            get_logger().warning("rendezvous fault", reason=f"{type(error).__name__}: {error}", exc_info=error)

    def _pause(self, useless: int) -> None:
        """What the keeper cannot take up now (it cannot reach the store, or not read what is there) is news again at
        once: without a pause the threads would keep each other busy."""
        if useless:
            seconds = min(_FIRST_PAUSE * 2.0 ** min(useless - 1, _MANY), _AFTER_ERROR)
            with self._condition:
                self._condition.wait_for(lambda: self._stopping, seconds)

    def _pass_on(self) -> None:
        """Wake the keeper and wait until it has taken a whole turn: else the same news would come again and again."""
        with self._condition:
            target = self._begun + 1
            self._woken = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._turns >= target or self._stopping, _AFTER_ERROR)
