"""What is asked and what is answered, and both in HTTP/1.1 over h11, with or without TLS. No I/O."""

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

_MOST_FIELDS = 16  # of a query
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SAFE: Headers = (  # in every answer: nothing is guessed, framed, told to others or kept
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True)
class Request:
    """One request. Names of headers are in lower case. `may_wait`: whether the answer may be to wait for one."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    may_wait: bool = True


@dataclass(frozen=True)
class Response:
    """One answer. `policy`: what a browser may load for it."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    policy: str = _POLICY


@dataclass(frozen=True)
class Waiting:
    """The request is answered later: when the agent's status is another than `change`, or after `seconds`."""

    change: int
    seconds: Duration


def text(status: int, words: str, *headers: tuple[str, str]) -> Response:
    """An answer in words. What cannot be written as UTF-8 is shown by number."""
    return Response(status, f"{words}\n".encode("utf-8", "backslashreplace"), headers=headers)


class Exchange:
    """The one request of a connection and its answer: nothing that follows a request is taken for another one.

    Args:
        channel: for a connection of TLS.
    """

    def __init__(self, head_bytes: int, channel: Channel | None = None) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes)
        self._channel = channel
        self._begun = self._bodiless = False

    @property
    def rest(self) -> bytes:
        """What the client has sent behind its request."""
        return self._http.trailing_data[0]

    def receive(self, data: bytes) -> Request | Response | None:
        """The request, or what is to be answered to something that is none; None: more is needed.

        Raises:
            ssl.SSLError: it is no TLS, or the client will not go on with it.
        """
        if self._channel:
            if not self._begun and not speaks_tls(data):
                self._channel = None
                return text(400, "expected TLS, found none; ask for https:// here")
            self._begun = True
            data = self._channel.opened(data)
            if not data:
                return None
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            return text(error.error_status_hint, f"expected a request in HTTP/1.1, found: {error}")
        return self._read(event) if isinstance(event, h11.Request) else None

    def send(self, response: Response) -> bytes:
        """The bytes of an answer."""
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
        """What TLS has to send before the answer, or in its place."""
        return self._channel.reply() if self._channel else b""

    def _read(self, event: h11.Request) -> Request | Response:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        method, target = event.method.decode("ascii"), event.target.decode("latin-1")
        self._bodiless = method == "HEAD"
        if event.http_version not in (b"1.0", b"1.1"):
            return text(505, "expected HTTP/1.0 or HTTP/1.1, found another version")
        if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
            return text(413, "expected a request without a body")
        path, _, query = target.partition("?")
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return text(400, f"expected a query of at most {_MOST_FIELDS} fields")
        return Request(method, unquote(path), dict(fields), headers)
