"""The polling loop that all sources share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Context, Duration, Notice, Notices, Pause

_LONGEST_REASON = 300


def interval(context: Context, recommended: Duration) -> Duration:
    """Return the time between polls: the user's setting or, if there is none, the recommended time."""
    given: Duration | None = context.options["notice_interval"]
    return recommended if given is None else given


def poll(source: str, ask: Callable[[], Notice | None], context: Context, pause: Pause, every: Duration) -> Notices:
    """Call `ask` periodically until the agent ends, and yield its result whenever the result changes.

    If `ask` raises OSError or ValueError, the last notice remains in force, because it may still apply. If several
    calls in a row fail, only the first failure is logged.
    """
    known: Notice | None = None
    failing = False
    while True:
        try:
            found = ask()
        except (OSError, ValueError) as error:
            if not failing:
                reason = f"{str(error)[:_LONGEST_REASON]}; polling continues"
                context.log.warning("notice source unavailable", source=source, reason=reason)
            failing = True
        else:
            failing = False
            if found != known:
                known = found
                yield found
        if not pause(every):
            return
