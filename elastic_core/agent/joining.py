"""Joining: `next_rendezvous` in a thread of its own, so that a signal is answered while it blocks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_core.agent.roll_call import call_roll
from elastic_core.interfaces.handler import RendezvousInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.agent.news import News
    from elastic_core.agent.progress import Progress
    from elastic_core.agent.roll_call import Own
    from elastic_core.clock import Clock
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.node import Round


def next_round(
    handler: RendezvousHandler, own: Own, news: News, clock: Clock, progress: Progress
) -> RendezvousInfo | BaseException | None:
    """Wait for the next round, or for what is raised instead of it; None when a signal asks the agent to leave."""
    begin_joining(handler, own, news.joined)
    while (outcome := news.take_joined()) is None:
        news.wait((), progress.look(clock.now()))
        if news.signals:
            return None
    return outcome


def begin_joining(
    handler: RendezvousHandler, own: Own, deliver: Callable[[RendezvousInfo | BaseException], None]
) -> None:
    """Start it. `deliver` is called in that thread with the round, `formed` included, or with what was raised."""

    def join() -> None:
        outcome: RendezvousInfo | BaseException
        try:
            outcome = _with_members(handler.next_rendezvous(), own)
        except BaseException as error:  # noqa: BLE001 - carried over to the agent's thread and raised there
            outcome = error
        deliver(outcome)

    threading.Thread(target=join, name="rendezvous", daemon=True).start()


def _with_members(info: RendezvousInfo, own: Own) -> RendezvousInfo:
    """The same with what all members agree on. Handlers that were written for torchrun hand out a class of torch's,
    which knows no such thing."""
    formed: Round | None = getattr(info, "formed", None)
    if formed is None:
        formed = call_roll(info.store, info.rank, info.world_size, own)
    return RendezvousInfo(info.store, info.rank, info.world_size, info.bootstrap_store_info, formed)
