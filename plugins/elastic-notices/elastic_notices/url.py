"""The `http` source, which polls a URL of the user's own service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import ConfigurationError, Problem, SystemClock
from elastic_notices.decoding import clean_reason, make_notice, parse_object, parse_time
from elastic_notices.polling import interval, poll
from elastic_notices.web import Answer, Web

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Duration, Notice, Notices, Pause

_EVERY: Duration = 5.0


def watch_url(context: Context, pause: Pause) -> Notices:
    """Yield the notice that the URL `--notice-url` returns."""
    url = context.options["notice_url"]
    if not url:
        raise ConfigurationError(Problem("--notices", "the source 'http' requires --notice-url=URL"))
    web, clock = Web(url, "--notice-url"), SystemClock()
    return poll("http", lambda: decode(web.ask(""), clock.timestamp()), context, pause, interval(context, _EVERY))


def decode(answer: Answer, now: float) -> Notice | None:
    """Decode `{"at": TIME or null, "reason": TEXT}`. Both fields are optional. Status 204 or 404 means that there is no
    notice."""
    if answer.status in (204, 404):
        return None
    found = parse_object(answer.expected_text())
    at, reason = found.get("at"), found.get("reason", "")
    if not isinstance(reason, str):
        raise ValueError(f"the reason must be a string, not {type(reason).__name__}")
    return make_notice(clean_reason(reason, "the notice URL requests it"), None if at is None else parse_time(at), now)
