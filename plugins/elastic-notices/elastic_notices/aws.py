"""The `aws` and `aws-rebalance` sources, which read notices for EC2 spot instances from the instance metadata
(IMDSv2)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.plugin import Notice, SystemClock, later
from elastic_notices.decoding import make_notice, parse_object, parse_time
from elastic_notices.polling import interval, poll
from elastic_notices.web import Answer, Web

if TYPE_CHECKING:
    from elastic_core.plugin import Clock, Context, Duration, Instant, Notices, Pause

_EVERY: Duration = 5.0
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_TOKEN_LIVES = 6 * 3600  # seconds, the most that the service allows
_RENEWED_BEFORE: Duration = 300.0


def watch_interruption(context: Context, pause: Pause) -> Notices:
    """Yield a notice when AWS interrupts this spot instance."""
    service, clock = _service(context), SystemClock()
    return poll(
        "aws", lambda: decode_action(service.get(_ACTION), clock.timestamp()), context, pause, interval(context, _EVERY)
    )


def watch_rebalance(context: Context, pause: Pause) -> Notices:
    """Yield a notice when AWS recommends replacing this spot instance."""
    service = _service(context)
    return poll(
        "aws-rebalance", lambda: decode_rebalance(service.get(_REBALANCE)), context, pause, interval(context, _EVERY)
    )


def decode_action(answer: Answer, now: float) -> Notice | None:
    """Decode `{"action": "stop", "time": "2026-11-28T08:22:00Z"}`. Status 404 means that there is no notice."""
    if answer.status == 404:
        return None
    found = parse_object(answer.expected_text())
    action = found.get("action")
    if action not in ("hibernate", "stop", "terminate"):
        raise ValueError("expected the action to be hibernate, stop or terminate")
    return make_notice(f"AWS will {action} this spot instance", parse_time(found.get("time")), now)


def decode_rebalance(answer: Answer) -> Notice | None:
    """Decode `{"noticeTime": "2026-11-28T08:22:00Z"}`. The response does not contain the time of an interruption."""
    if answer.status == 404:
        return None
    parse_time(parse_object(answer.expected_text()).get("noticeTime"))
    return Notice("AWS recommends replacing this spot instance")


class MetadataService:
    """A client of the instance metadata service. It keeps an IMDSv2 session token."""

    def __init__(self, web: Web, clock: Clock) -> None:
        self._web, self._clock = web, clock
        self._token: tuple[str, Instant] | None = None  # with the time at which it must be renewed

    def get(self, path: str) -> Answer:
        """Return the response for this path. If the token has expired or is refused, a new token is used."""
        if self._token is None or self._clock.now() >= self._token[1]:
            self._token = self._new_token()
        answer = self._get(path, self._token[0])
        if answer.status != 401:
            return answer
        self._token = self._new_token()
        return self._get(path, self._token[0])

    def _get(self, path: str, token: str) -> Answer:
        return self._web.ask(path, {"X-aws-ec2-metadata-token": token})

    def _new_token(self) -> tuple[str, Instant]:
        asked_at = self._clock.now()
        lives = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIVES)}
        token = self._web.ask("/latest/api/token", lives, "PUT").expected_text()
        if not (token.isascii() and token.isprintable()):  # it becomes a header
            raise ValueError("the service returned an invalid token")
        return token, later(asked_at, _TOKEN_LIVES - _RENEWED_BEFORE)


def _service(context: Context) -> MetadataService:
    if given := context.options["notice_endpoint"]:
        web = Web(given, "--notice-endpoint")
    else:
        web = Web(os.environ.get(_ENDPOINT) or "http://169.254.169.254", _ENDPOINT)
    return MetadataService(web, SystemClock())
