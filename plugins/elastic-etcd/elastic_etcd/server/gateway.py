"""Sends requests to etcd over HTTP, which does not require gRPC. The client's description of etcd's messages is too old
to contain the membership messages, but over HTTP they are plain JSON."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import REFUSED, BackgroundCall, SystemClock, later, resolve_host, try_connect
from elastic_etcd.client.channel import no_password
from elastic_etcd.server.cluster import Answer, members_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from elastic_core.plugin import Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.server.cluster import Place

_PATIENCE: Duration = 1.0  # seconds for one answer
_LONGEST_ANSWER = 64 * 1024  # bytes
_LOOK: Duration = 2.5  # seconds for the answers from all places; a name lookup can take longer


class Refused(Exception):
    """The server answered, but did not carry out the request."""


UNUSABLE = (OSError, Refused, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""The errors that can occur when a request is sent to a server that may not be etcd, and when its response is read."""


def ask(url: str, body: Any = None, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> Any:
    """Request this URL and return the parsed JSON response. If `body` is given, it is sent as JSON. Raises OSError if
    the server does not answer, Refused if it rejects the request, and ValueError or RecursionError if the server is not
    etcd."""
    import http.client
    from urllib.parse import urlsplit

    where = urlsplit(url)
    connection = (
        http.client.HTTPSConnection(where.netloc, timeout=timeout, context=security)
        if where.scheme == "https"
        else http.client.HTTPConnection(where.netloc, timeout=timeout)
    )
    try:
        with contextlib.closing(connection):  # http.client uses no proxies and follows no redirects
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if sent is None else "POST", where.path, sent)
            answer = connection.getresponse()
            content = answer.read(_LONGEST_ANSWER)
    except http.client.HTTPException as error:
        raise ValueError(f"{url} does not speak HTTP") from error
    if not 200 <= answer.status < 300:
        raise Refused(_reason(content) or f"HTTP status {answer.status}")
    return json.loads(content)


def is_healthy(url: str, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> bool:
    """Return whether the etcd server at this URL reports that it is healthy, which requires a quorum. Raises the same
    errors as `ask`."""
    return bool(ask(f"{url}/health", None, timeout, security)["health"] == "true")


class Gateway:
    """Asks members about their cluster. Unless documented otherwise, calls raise the errors in UNUSABLE."""

    def __init__(self, tls: Security | None) -> None:
        self._tls = tls

    def at(self, place: Place, path: str, **words: Any) -> Any:
        """Call this path of the API on the member at this place."""
        return ask(f"{place.url}/v3/{path}", words, _PATIENCE, self.context())

    def look(self, places: Sequence[Place]) -> list[Answer]:
        """Ask these places in parallel, and return their answers within 2.5 s. Never raises."""
        calls = [(place, BackgroundCall(partial(self._answer, place), "etcd look")) for place in places]
        clock = SystemClock()
        until = later(clock.now(), _LOOK)
        # If a call hangs in a name lookup, it is abandoned.
        return [call.result() if call.wait(max(0.0, until - clock.now())) else Answer(place) for place, call in calls]

    def leader(self, answers: Sequence[Answer]) -> str:
        """Return the leader's id as a healthy member reports it, or an empty string. Never raises."""
        for answer in answers:
            if answer.healthy:
                with contextlib.suppress(*UNUSABLE):
                    return str(self.at(answer.place, "maintenance/status")["leader"])
        return ""

    def context(self) -> ssl.SSLContext | None:
        """Return a new TLS context for each request, because certificates may be renewed. Without TLS, return None."""
        if self._tls is None:
            return None
        import ssl

        made = ssl.create_default_context(cafile=self._tls.ca_cert)
        made.load_cert_chain(self._tls.cert or "", self._tls.key, no_password)
        return made

    def _answer(self, place: Place) -> Answer:
        """Ask the peer port for the members, because it answers before there is a quorum."""
        try:  # asked before the member list, so that the list of a healthy member is up to date
            healthy = is_healthy(place.url, _PATIENCE, self.context())
        except UNUSABLE:
            healthy = False
        try:
            members = members_of(ask(f"{place.peer_url}/members", None, _PATIENCE, self.context()))
        except UNUSABLE as error:
            return Answer(place, isinstance(error, ConnectionRefusedError) and _refuses_everywhere(place))
        return Answer(place, False, members, healthy)


def _refuses_everywhere(place: Place) -> bool:
    """Return whether all addresses of the place refuse connections. If one is silent, the others prove nothing."""
    try:
        addresses = resolve_host(place.host, place.peer_port)
    except OSError:
        return False
    return all(try_connect(address, _PATIENCE)[0] == REFUSED for address in addresses)


def _reason(answer: bytes) -> str:
    try:
        message = json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return "".join(it if it.isprintable() else "?" for it in str(message)[:200])
