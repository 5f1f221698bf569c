"""The `azure` source, which reads this VM's scheduled events from the instance metadata service. It never approves an
event."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from elastic_core.plugin import SystemClock
from elastic_notices.decoding import make_notice, parse_object, to_seconds
from elastic_notices.polling import interval, poll
from elastic_notices.web import Answer, Web

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Duration, Notice, Notices, Pause

_EVERY: Duration = 1.0
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_HEADERS = {"Metadata": "true"}
_LEAVE = ("Preempt", "Terminate", "Reboot", "Redeploy")  # not Freeze, which pauses the VM for a few seconds


def watch_vm(context: Context, pause: Pause) -> Notices:
    """Yield a notice when an event that stops this VM is scheduled."""
    web = Web(context.options["notice_endpoint"] or "http://169.254.169.254", "--notice-endpoint")
    clock = SystemClock()
    name = ""

    def ask() -> Notice | None:
        nonlocal name
        name = name or decode_name(web.ask(_NAME, _HEADERS))
        return decode(web.ask(_EVENTS, _HEADERS), name, clock.timestamp())

    return poll("azure", ask, context, pause, interval(context, _EVERY))


def decode_name(answer: Answer) -> str:
    """Return this VM's name from the response. Raises ValueError if the name is empty."""
    if not (name := answer.expected_text().strip()):
        raise ValueError("the name of this VM is empty")
    return name


def decode(answer: Answer, name: str, now: float) -> Notice | None:
    """Return the notice for the first event that stops this VM, or None. The service lists the events of all VMs in an
    availability set or scale set."""
    notices = [
        _notice(event, now)
        for event in _objects(parse_object(answer.expected_text()).get("Events"))
        if event.get("EventType") in _LEAVE and name.casefold() in _names(event.get("Resources"))
    ]
    return min(notices, key=lambda notice: notice.at or now, default=None)


def _notice(event: dict[str, object], now: float) -> Notice:
    reason = f"Azure will {str(event['EventType']).lower()} this VM"
    not_before = event.get("NotBefore")
    if event.get("EventStatus") == "Started" or not_before == "":
        return make_notice(reason, None, now)
    if not isinstance(not_before, str):
        raise ValueError("expected NotBefore as text")
    try:
        return make_notice(reason, to_seconds(parsedate_to_datetime(not_before)), now)
    except (OverflowError, TypeError):  # raised for some invalid times
        raise ValueError("expected NotBefore as a time") from None


def _objects(found: object) -> list[dict[str, object]]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("expected a list of events")
    return found


def _names(found: object) -> set[str]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("Resources must be a list of names")
    return {each.casefold() for each in found}  # Azure ignores the case of names
