"""What a node knows, in the one place that all parts of its keeper share: the view, and whether there is news beyond
it. The view changes here only, and whoever follows it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.rendezvous.state import State
from elastic_core.rendezvous.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.interfaces.backend import Token


class Known:
    """Written by the thread that turns; read by any.

    Args:
        key: of this node's entry.
        publish: receives every new view.

    Attributes:
        view: what is known.
        state_news: somebody has written the state since it was read, or may have.
        roster_news: somebody has come or gone since this node looked, or the state has changed.
        line_news: those in the line before this node may have left since they were counted.
        seated_in: the last round that formed with this node; 0 for none.
    """

    def __init__(self, key: str, publish: Callable[[View], None]) -> None:
        self.view = View()
        self.state_news = True
        self.roster_news = True
        self.line_news = False
        self.seated_in = 0
        self._key = key
        self._publish = publish

    @property
    def state(self) -> State:
        """As last read; a new one before the first."""
        return self.view.state or State()

    def show(self, view: View) -> None:
        """Publish it, if it is another one."""
        if view != self.view:
            if view.state is not None and view.state is not self.view.state and view.state.seated(self._key):
                self.seated_in = view.state.round
            self.view = view
            self._publish(view)

    def took(self, state: State, token: Token | None) -> None:
        """This state stands in the store, by the write with this token. Who is there is to be looked at again: a state
        is never decided about by a roster that was read before it."""
        self.roster_news = True
        self.show(replace(self.view, state=state, token=token))

    def lost_entry(self) -> None:
        """This node's entry may stand in the store no more. Nobody need be told: it is announced anew at once."""
        self.view = replace(self.view, announced=None)

    def unsure(self) -> None:
        """A turn went wrong: nothing that was read before it is sure to stand."""
        self.state_news = self.roster_news = True
