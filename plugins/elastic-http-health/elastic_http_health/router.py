"""Which request is answered how, and who may ask it. In the loop's thread.

A route is a line in `Router.__init__`. Documents are made once for each change of the agent and once a second besides,
however often they are asked for.
"""

from __future__ import annotations

import hmac
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import Probe, get_logger, ip_address, later, live, ready
from elastic_http_health import document, metrics, page
from elastic_http_health.document import Observation
from elastic_http_health.messages import Request, Response, Waiting, text
from elastic_http_health.usage import UsageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from elastic_core.plugin import AgentStatus, AgentView, Clock, Duration, Instant
    from elastic_http_health.options import Options

_FRESH = 1.0  # seconds


class _Made(NamedTuple):
    key: tuple[int, Probe]
    until: Instant
    body: bytes


class Router:
    """See the module.

    Args:
        agent: what to tell about.
        timeout: seconds without a turn of its loop after which it counts as stuck.
        names: of this machine, with `*` for any part, in lower case, see `means_us`.
        loopback_only: whether it answers at loopback addresses only.
    """

    def __init__(
        self,
        agent: AgentView,
        timeout: Duration,
        options: Options,
        names: Iterable[str],
        loopback_only: bool,
        counts: metrics.Counts,
        clock: Clock,
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._bearer = options.bearer
        self._longest_wait = options.limits.wait_seconds
        self._names = tuple(names)
        self._loopback_only = loopback_only
        self._clock = clock
        self._usage = UsageLog(clock)
        self._totals = totals = metrics.Totals()
        self._made: dict[str, _Made] = {}
        self._faults = 0

        def exposition(seen: Observation) -> bytes:
            return metrics.exposition(seen, totals, counts)

        self._public: Mapping[str, Callable[[Request], Response]] = {
            "/": lambda _: page.response(),
            "/livez": lambda request: self._probe(request, "livez", self._alive()),
            "/readyz": lambda request: self._probe(request, "readyz", ready(self._agent.status())),
        }
        self._with_token: Mapping[str, Callable[[Request], Response | Waiting]] = {
            "/status": lambda _: self._document("status", document.status_json),
            "/changes": self._changes,
            "/metrics": lambda _: self._document("metrics", exposition, metrics.CONTENT_TYPE),
        }

    def note(self, status: AgentStatus) -> None:
        """The agent has changed. Called for every change, in order."""
        self._totals.note(status)

    def answer(self, request: Request) -> Response | Waiting:
        """The answer, or what is to be waited for first."""
        try:
            return self._answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, the endpoint goes on
            self.tell_fault(f"it could not answer {request.path!r}", error)
            return text(500, "the health endpoint could not find an answer; the log of the agent says why")

    def tell_fault(self, reason: str, error: BaseException | None) -> None:
        """Once: clients that can cause a fault must not fill the log with it."""
        self._faults += 1
        if self._faults == 1:
            get_logger().warning("health endpoint failed", endpoint="http", reason=reason, exc_info=error)

    def _answer(self, request: Request) -> Response | Waiting:
        if request.method not in ("GET", "HEAD"):
            words = f"expected GET or HEAD, found {request.method}: nothing can be changed here"
            return text(405, words, ("Allow", "GET, HEAD"))
        if not means_us(request.headers, self._names, self._loopback_only):
            words = (
                "expected a request addressed to localhost, an address of this machine or one of its names that are "
                "allowed, found another host; if it is one of its names, start the agent with --health-conf "
                "allowed_hosts=NAME"
            )
            return text(421, words)
        if request.path in self._public:
            return self._public[request.path](request)
        if request.path not in self._with_token:
            return text(404, f"expected one of {', '.join([*self._public, *self._with_token])}, found another path")
        if not may_see(self._bearer(), request.headers):
            return text(401, "expected the bearer token of this endpoint", ("WWW-Authenticate", "Bearer"))
        return self._with_token[request.path](request)

    def _alive(self, fault: str | None = None) -> Probe:
        now = self._clock.timestamp()  # read first: a stall in between must not count as the agent's silence
        fault = self._agent.watchdog_fault() if fault is None else fault
        return live(self._agent.alive_at(), now, self._timeout, fault)

    def _probe(self, request: Request, name: str, found: Probe) -> Response:
        code = 200 if found.ok else 503
        if not may_see(self._bearer(), request.headers):
            return text(code, "ok" if found.ok else "not ok")
        if "verbose" not in request.query:
            return text(code, found.reason)
        checks = {"workers": found}
        if name == "livez":
            fault = self._agent.watchdog_fault()
            checks = {"loop": self._alive(fault=""), "watchdog": Probe(not fault, fault or "no fault")}
        shown = [f"[{'+' if check.ok else '-'}]{part}: {check.reason}" for part, check in checks.items()]
        return text(code, "\n".join([*shown, f"{name} check {'passed' if found.ok else 'failed'}"]))

    def _changes(self, request: Request) -> Response | Waiting:
        try:
            after = int(request.query.get("after", "-1"))
            seconds = float(request.query.get("wait", "0"))
        except ValueError:
            return text(400, "expected numbers as after (a change) and wait (seconds)")
        if request.may_wait and after == self._agent.status().version and seconds > 0:
            return Waiting(after, min(seconds, self._longest_wait))
        return self._document("changes", document.changes_json)

    def _document(
        self, name: str, make: Callable[[Observation], bytes], content_type: str = "application/json"
    ) -> Response:
        """The one that was made last, or a new one."""
        status, alive, now = self._agent.status(), self._alive(), self._clock.now()
        key = (status.version, alive)
        made = self._made.get(name)
        if made is None or made.key != key or made.until <= now:
            template = self._agent.template_pid()
            running = [worker.pid for worker in status.workers if worker.state == "running"]
            usage = self._usage.of([*running, *([template] if template else [])])
            not_signed = self._agent.not_signed()
            now_s, checks = self._clock.timestamp(), self._agent.checks()
            seen = Observation(status, alive, ready(status), usage, now_s, template, not_signed, checks)
            made = self._made[name] = _Made(key, later(now, _FRESH), make(seen))
        return Response(200, made.body, content_type)


def may_see(token: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a request carries the token, where there is one. How long that takes tells nothing of the token."""
    if token is None:
        return True
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def means_us(headers: Mapping[str, str], names: Iterable[str], loopback_only: bool) -> bool:
    """Whether a request is addressed to this machine. A page from elsewhere whose name was made to lead here (DNS
    rebinding) is not: browsers tell that name, and it is none of `names`. No page can do the same to an address, so any
    address will do, also one whose port is forwarded; where only loopback addresses lead here, it is one of them.
    Programs that speak HTTP/1.0 need not tell any host."""
    host = headers.get("host", "localhost").strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif ":" in host:
        host = host.rpartition(":")[0]
    address = ip_address(host.partition("%")[0])
    if address is not None and (address.is_loopback or not loopback_only):
        return True
    return any(fnmatchcase(host.removesuffix("."), name) for name in names)
