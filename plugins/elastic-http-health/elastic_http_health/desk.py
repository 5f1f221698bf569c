"""Answers requests from what the agent shows. In the loop's thread.

Documents are made once for each change of the agent and once a second besides, however often they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elastic_core.clock import later
from elastic_core.health import Probe, live, ready
from elastic_http_health import document, exposition, page
from elastic_http_health.access import may_see, means_loopback
from elastic_http_health.messages import Request, Response, Waiting, as_json, json_bytes, text
from elastic_http_health.totals import Totals
from elastic_http_health.usage import UsageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.health import AgentStatus, AgentView
    from elastic_http_health.counts import Counts
    from elastic_http_health.usage import Usage

_FRESH = 1.0  # seconds


class Sight(NamedTuple):
    """What there is to see at one moment."""

    status: AgentStatus
    alive: Probe
    ready: Probe
    usage: Mapping[int, Usage]
    now: float


class _Made(NamedTuple):
    key: tuple[int, Probe]
    until: Instant
    body: bytes


class Desk:
    """See the module.

    Args:
        agent: what to tell about.
        timeout: seconds without a turn of its loop after which it counts as stuck.
        token: that all but probes and the page ask for.
        loopback_only: whether requests must be addressed to this machine by one of its loopback names.
        longest_wait: seconds.
    """

    def __init__(
        self,
        agent: AgentView,
        timeout: Duration,
        token: str | None,
        loopback_only: bool,
        longest_wait: Duration,
        counts: Counts,
        clock: Clock,
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._token = token
        self._loopback_only = loopback_only
        self._longest_wait = longest_wait
        self._counts = counts
        self._clock = clock
        self._usage = UsageLog(clock)
        self._totals = Totals()
        self._made: dict[str, _Made] = {}
        self._open: Mapping[str, Callable[[Request], Response]] = {
            "/": lambda _: page.response(),
            "/livez": lambda request: self._probe(request, "livez", self._alive()),
            "/readyz": lambda request: self._probe(request, "readyz", ready(self._agent.status())),
        }
        self._closed: Mapping[str, Callable[[Request], Response | Waiting]] = {
            "/status": lambda _: as_json(self._made_once("status", _status_body)),
            "/changes": self._changes,
            "/metrics": lambda _: Response(200, self._made_once("metrics", self._metrics), exposition.CONTENT_TYPE),
        }

    def note(self, status: AgentStatus) -> None:
        """The agent has changed. Called for every change, in order."""
        self._totals.note(status)

    def answer(self, request: Request) -> Response | Waiting:
        """The answer, or what is to be waited for first."""
        if request.method not in ("GET", "HEAD"):
            return text(
                405,
                f"expected GET or HEAD, found {request.method}: nothing can be changed here",
                ("Allow", "GET, HEAD"),
            )
        if self._loopback_only and not means_loopback(request.headers):
            return text(421, "expected a request addressed to localhost or a loopback address, found another host")
        if request.path in self._open:
            return self._open[request.path](request)
        if request.path not in self._closed:
            return text(404, f"expected one of {', '.join([*self._open, *self._closed])}, found another path")
        if not may_see(self._token, request.headers):
            return text(401, "expected the bearer token of this endpoint", ("WWW-Authenticate", "Bearer"))
        return self._closed[request.path](request)

    def changed(self) -> Response:
        """What a request is answered that has waited for a change."""
        return as_json(self._made_once("changes", _changes_body))

    def _alive(self) -> Probe:
        return self._live(self._agent.watchdog_fault())

    def _live(self, fault: str = "") -> Probe:
        now = self._clock.timestamp()  # read first: a stall in between must not count as the agent's silence
        return live(self._agent.alive_at(), now, self._timeout, fault)

    def _probe(self, request: Request, name: str, found: Probe) -> Response:
        code = 200 if found.ok else 503
        if not may_see(self._token, request.headers):
            return text(code, "ok" if found.ok else "not ok")
        if "verbose" not in request.query:
            return text(code, found.reason)
        checks = self._checks() if name == "livez" else {"workers": found}
        shown = [f"[{'+' if check.ok else '-'}]{part}: {check.reason}" for part, check in checks.items()]
        return text(code, "\n".join([*shown, f"{name} check {'passed' if found.ok else 'failed'}"]))

    def _checks(self) -> Mapping[str, Probe]:
        """Liveness in its parts."""
        fault = self._agent.watchdog_fault()
        return {"loop": self._live(), "watchdog": Probe(not fault, fault or "no fault")}

    def _changes(self, request: Request) -> Response | Waiting:
        try:
            after = int(request.query.get("after", "-1"))
            seconds = float(request.query.get("wait", "0"))
        except ValueError:
            return text(400, "expected numbers as after (a change) and wait (seconds)")
        if after != self._agent.status().version or not seconds > 0:
            return self.changed()
        return Waiting(after, min(seconds, self._longest_wait))

    def _made_once(self, name: str, make: Callable[[Sight], bytes]) -> bytes:
        status, alive, now = self._agent.status(), self._alive(), self._clock.now()
        key = (status.version, alive)
        made = self._made.get(name)
        if made is None or made.key != key or made.until <= now:
            usage = self._usage.of(worker.pid for worker in status.workers if worker.state == "running")
            sight = Sight(status, alive, ready(status), usage, self._clock.timestamp())
            made = self._made[name] = _Made(key, later(now, _FRESH), make(sight))
        return made.body

    def _metrics(self, sight: Sight) -> bytes:
        seen = exposition.Sight(sight.status, sight.alive.ok, sight.ready.ok, sight.usage, self._totals, self._counts)
        return exposition.exposition(seen)


def _status_body(sight: Sight) -> bytes:
    return json_bytes(document.status_document(*sight))


def _changes_body(sight: Sight) -> bytes:
    return json_bytes(document.changes_document(*sight))
