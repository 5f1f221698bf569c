"""Routes and authorizes requests, in the event loop's thread.

Each route is a line in `Router.__init__`. A document is rebuilt after each change of the agent's status and otherwise
at most once per second, regardless of the number of requests.
"""

from __future__ import annotations

import hmac
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import Probe, SystemClock, get_logger, ip_address, later, live, ready
from elastic_http_health import document, metrics, page
from elastic_http_health.document import Observation
from elastic_http_health.messages import Request, Response, Waiting, text
from elastic_http_health.usage import UsageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from elastic_core.plugin import AgentStatus, AgentView, Duration, Instant
    from elastic_http_health.options import Options

_FRESH = 1.0  # seconds


class _Made(NamedTuple):
    key: tuple[int, Probe]
    until: Instant
    body: bytes


class Router:
    """Answers requests about an agent.

    Args:
        agent: the agent.
        timeout: seconds after which an agent whose loop makes no progress is considered stuck.
        names: this machine's names, in lower case. `*` matches any characters. See `means_us`.
        loopback_only: whether the endpoint listens only on loopback addresses.
    """

    def __init__(
        self,
        agent: AgentView,
        timeout: Duration,
        options: Options,
        names: Iterable[str],
        loopback_only: bool,
        counts: metrics.Counts,
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._bearer = options.bearer
        self._longest_wait = options.limits.wait_seconds
        self._names = tuple(names)
        self._loopback_only = loopback_only
        self._clock = SystemClock()
        self._usage = UsageLog(self._clock)
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
        """Add a new status of the agent to the totals. Call this method for every change of the status, in order."""
        self._totals.note(status)

    def answer(self, request: Request) -> Response | Waiting:
        """Return the response to a request, or a `Waiting` if the response must be delayed."""
        try:
            return self._answer(request)
        except Exception as error:  # noqa: BLE001 - an error must not stop the endpoint
            self.tell_fault(f"cannot answer {request.path!r}", error)
            return text(500, "internal error of the health endpoint; see the agent's log")

    def tell_fault(self, reason: str, error: BaseException | None) -> None:
        """Log the first fault. Later faults are not logged, so that clients cannot flood the log."""
        self._faults += 1
        if self._faults == 1:
            get_logger().warning("health endpoint failed", endpoint="http", reason=reason, exc_info=error)

    def _answer(self, request: Request) -> Response | Waiting:
        if request.method not in ("GET", "HEAD"):
            words = f"only GET and HEAD are supported, not {request.method}"
            return text(405, words, ("Allow", "GET, HEAD"))
        if not means_us(request.headers, self._names, self._loopback_only):
            words = (
                "the host in the request is not localhost, an address of this machine, or an allowed name; to allow a "
                "name, start the agent with --health-conf allowed_hosts=NAME"
            )
            return text(421, words)
        if request.path in self._public:
            return self._public[request.path](request)
        if request.path not in self._with_token:
            return text(404, f"not found; available: {', '.join([*self._public, *self._with_token])}")
        if not may_see(self._bearer(), request.headers):
            return text(401, "this endpoint requires a bearer token", ("WWW-Authenticate", "Bearer"))
        return self._with_token[request.path](request)

    def _alive(self, fault: str | None = None) -> Probe:
        now = self._clock.timestamp()  # read first: a delay in between must not make the agent look stuck
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
            return text(400, "after (a change) and wait (seconds) must be numbers")
        if request.may_wait and after == self._agent.status().version and seconds > 0:
            return Waiting(after, min(seconds, self._longest_wait))
        return self._document("changes", document.changes_json)

    def _document(
        self, name: str, make: Callable[[Observation], bytes], content_type: str = "application/json"
    ) -> Response:
        """Return the document, from the cache if it is still current."""
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
    """Return whether the request has the right token, or no token is required. The comparison takes constant time."""
    if token is None:
        return True
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def means_us(headers: Mapping[str, str], names: Iterable[str], loopback_only: bool) -> bool:
    """Return whether the request is addressed to this machine. The check protects against DNS rebinding, in which the
    name of a malicious web page resolves to this machine. The browser then sends that name as the host, and the name is
    not among `names`.

    Addresses cannot be rebound, so any address is accepted, such as that of a forwarded port. If the endpoint listens
    only on loopback, only loopback addresses are accepted. HTTP/1.0 clients may omit the host.
    """
    host = headers.get("host", "localhost").strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif ":" in host:
        host = host.rpartition(":")[0]
    address = ip_address(host.partition("%")[0])
    if address is not None and (address.is_loopback or not loopback_only):
        return True
    return any(fnmatchcase(host.removesuffix("."), name) for name in names)
