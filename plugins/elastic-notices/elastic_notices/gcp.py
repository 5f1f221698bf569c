"""The `gcp` source, which asks the metadata server about preemption and about host maintenance that terminates the
VM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import Notice, SystemClock
from elastic_notices.polling import interval, poll
from elastic_notices.web import Web

if TYPE_CHECKING:
    from elastic_core.plugin import Clock, Context, Duration, Notices, Pause

_HELD: Duration = 5.0
_LONGEST_HELD = 60  # seconds; maintenance is checked only between two long polls
_BETWEEN: Duration = 1.0  # pause between two long polls, in case the server does not hold them
_HOST = "GCE_METADATA_HOST"
_FLAVOR = "Metadata-Flavor"
_INSTANCE = "/computeMetadata/v1/instance"
_TERMINATES = "TERMINATE_ON_HOST_MAINTENANCE"
_EVENTS = ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", _TERMINATES)

_TO_PREEMPTION: Duration = 30.0
_TO_MAINTENANCE: Duration = 60.0
_TO_GPU_MAINTENANCE: Duration = 3600.0


def watch_vm(context: Context, pause: Pause) -> Notices:
    """Yield a notice when GCP preempts this VM or stops it for host maintenance."""
    if given := context.options["notice_endpoint"]:
        web = Web(given, "--notice-endpoint")
    else:
        web = Web(f"http://{os.environ.get(_HOST) or '169.254.169.254'}", _HOST)
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    vm = Vm(web, SystemClock(), has_gpu, interval(context, _HELD))
    return poll("gcp", vm.ask, context, pause, _BETWEEN)


def decode(preempted: str, event: str, since: float | None, has_gpu: bool) -> Notice | None:
    """Return the notice for these values of `preempted` and `maintenance-event`, or None. The values last changed at
    `since`.

    The server does not report when it will stop the VM. The documentation promises 30 s after a preemption begins.
    Before maintenance, it promises 60 s of notice, or an hour for a VM with GPUs. If the time of the change is unknown
    (None), the node must leave immediately.
    """
    if preempted not in ("TRUE", "FALSE") or event not in _EVENTS:
        raise ValueError("the metadata server returned an undocumented value")
    if preempted == "TRUE":
        return Notice("GCP preempts this VM", None if since is None else since + _TO_PREEMPTION)
    if event == _TERMINATES:
        left = _TO_GPU_MAINTENANCE if has_gpu else _TO_MAINTENANCE
        return Notice("GCP stops this VM for host maintenance", None if since is None else since + left)
    return None


class Vm:
    """Reads this VM's values from the metadata server, and remembers when they changed. The server answers a long poll
    when `preempted` changes, or after about `held` seconds."""

    def __init__(self, web: Web, clock: Clock, has_gpu: bool, held: Duration) -> None:
        self._web, self._clock, self._has_gpu = web, clock, has_gpu
        self._held = min(max(round(held), 1), _LONGEST_HELD)  # the server accepts whole seconds
        self._etag = "0"
        self._values: tuple[str, str] | None = None
        self._since: float | None = None

    def ask(self) -> Notice | None:
        query = f"?wait_for_change=true&timeout_sec={self._held}&last_etag={self._etag}"
        preempted, self._etag = self._get(f"/preempted{query}", self._held)
        event, _ = self._get("/maintenance-event")
        if (preempted, event) != self._values:
            self._since = None if self._values is None else self._clock.timestamp()
            self._values = preempted, event
        return decode(preempted, event, self._since, self._has_gpu)

    def _get(self, path: str, held: Duration = 0.0) -> tuple[str, str]:
        answer = self._web.ask(_INSTANCE + path, {_FLAVOR: "Google"}, held=held)
        if answer.headers.get(_FLAVOR) != "Google":
            raise ValueError("the response does not come from a GCP metadata server")
        text, etag = answer.expected_text(), answer.headers.get("ETag", "0")
        return text.strip(), etag if etag.isalnum() else "0"
