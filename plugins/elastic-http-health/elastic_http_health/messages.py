"""HTTP/1.1 requests and responses, parsed and written with h11, with or without TLS. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

import h11

from elastic_http_health.tls import speaks_tls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.plugin import Duration
    from elastic_http_health.tls import Channel

Headers = tuple[tuple[str, str], ...]

_MOST_FIELDS = 16  # fields in a query
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SAFE: Headers = (  # in every response: no content sniffing, framing, referrers or caching
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True)
class Request:
    """One request. Header names are in lower case. If `may_wait` is False, the request must be answered immediately
    (see `Waiting`)."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    may_wait: bool = True


@dataclass(frozen=True)
class Response:
    """One response. `policy` is its content security policy."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    policy: str = _POLICY


@dataclass(frozen=True)
class Waiting:
    """Delays the response until the agent's status has another version than `change`, or for `seconds`."""

    change: int
    seconds: Duration


def text(status: int, words: str, *headers: tuple[str, str]) -> Response:
    """Create a plain text response. Characters that UTF-8 cannot encode are escaped."""
    return Response(status, f"{words}\n".encode("utf-8", "backslashreplace"), headers=headers)


class Exchange:
    """The request on a connection and its response. A connection serves only one request.

    Args:
        channel: the TLS channel of an https connection.
    """

    def __init__(self, head_bytes: int, channel: Channel | None = None) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes)
        self._channel = channel
        self._begun = self._bodiless = False

    @property
    def rest(self) -> bytes:
        """Data that the client has sent after its request."""
        return self._http.trailing_data[0]

    def receive(self, data: bytes) -> Request | Response | None:
        """Process received data. Returns the complete request, or None if more data is needed. If the request is
        invalid, the error response is returned.

        Raises:
            ssl.SSLError: the data is not valid TLS, or the client rejected the handshake.
        """
        if self._channel:
            if not self._begun and not speaks_tls(data):
                self._channel = None
                return text(400, "this port requires TLS; use https://")
            self._begun = True
            data = self._channel.opened(data)
            if not data:
                return None
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            return text(error.error_status_hint, f"invalid HTTP request: {error}")
        return self._read(event) if isinstance(event, h11.Request) else None

    def send(self, response: Response) -> bytes:
        """Return the bytes of the response, encrypted if the connection uses TLS."""
        headers = (
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Connection", "close"),
            ("Content-Security-Policy", response.policy),
            *_SAFE,
            *response.headers,
        )
        sent: bytes = self._http.send(h11.Response(status_code=response.status, headers=list(headers))) or b""
        if not self._bodiless:
            sent += response.body
        return self._channel.sealed(sent) if self._channel else sent

    def reply(self) -> bytes:
        """Return data that TLS has to send before the response or instead of it. Empty without TLS."""
        return self._channel.reply() if self._channel else b""

    def _read(self, event: h11.Request) -> Request | Response:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        method, target = event.method.decode("ascii"), event.target.decode("latin-1")
        self._bodiless = method == "HEAD"
        if event.http_version not in (b"1.0", b"1.1"):
            return text(505, "only HTTP/1.0 and HTTP/1.1 are supported")
        if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
            return text(413, "requests must not have a body")
        path, _, query = target.partition("?")
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return text(400, f"the query must not have more than {_MOST_FIELDS} fields")
        return Request(method, unquote(path), dict(fields), headers)
