"""One request and its answer in HTTP/1.1, over h11. No I/O.

A connection carries one request: what is accepted is then what is asked, so one limit bounds both, and nothing that
follows a request is ever taken for another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

import h11

from elastic_http_health.messages import Request, Response, text

if TYPE_CHECKING:
    from elastic_http_health.limits import Limits

_MOST_FIELDS = 16  # of a query


class Exchange:
    """Fed with what the client sends until there is a request, or a refusal to be sent."""

    def __init__(self, limits: Limits) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._bodiless = False

    def receive(self, data: bytes) -> Request | Response | None:
        """The request, or what is to be answered to something that is none; None: more is needed."""
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            return text(error.error_status_hint, f"expected a request in HTTP/1.1, found: {error}")
        return self._read(event) if isinstance(event, h11.Request) else None

    def send(self, response: Response) -> bytes:
        """The bytes of an answer."""
        head = h11.Response(status_code=response.status, headers=list(response.all_headers()))
        sent: bytes = self._http.send(head) or b""
        return sent if self._bodiless else sent + response.body

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
