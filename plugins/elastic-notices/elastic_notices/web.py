"""HTTP requests to one service, with limits on time and size."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import urllib3

from elastic_core.plugin import BackgroundCall, CallTimeout, ConfigurationError, Problem
from elastic_notices.decoding import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.plugin import Duration

LIMIT: Duration = 2.0
"""Seconds after which a request fails."""


class Answer(NamedTuple):
    """A response. Names in `headers` may be in any case."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = {}

    def expected_text(self) -> str:
        """Return the text of a response with status 200. Raises ValueError for any other status, because the service
        documents no other."""
        if self.status != 200:
            raise ValueError(f"the service returned the HTTP status {self.status}")
        return self.text


class Web:
    """A client for the service at `base`. The client follows no redirects and uses no proxies. Not thread-safe.

    Raises:
        ConfigurationError: `base` is not an HTTP URL. The error names `origin`.
    """

    def __init__(self, base: str, origin: str) -> None:
        try:
            url = urllib3.util.parse_url(base)
        except ValueError:
            url = urllib3.util.Url()
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError(Problem(origin, "expected a URL such as http://host:port"))
        self._base = base
        self._where = f"{url.scheme}://{url.netloc}"  # without the query, which may contain a secret
        self._call: BackgroundCall[Answer] | None = None
        self._socket: socket.socket | None = None  # of the last request

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", held: Duration = 0.0
    ) -> Answer:
        """Request a path below `base`, or `base` itself if the path is empty, and return the response. The service may
        hold a long poll for `held` seconds.

        Each request runs in its own thread, because a socket's timeout restarts with every byte and a name lookup has
        no time limit. At the limit, the connection is closed, which ends the request. A request does not begin before
        the previous one has ended.

        Raises:
            OSError: there was no response in time, or it was too long.
        """
        limit = LIMIT + held
        if self._call is not None and not self._call.wait(limit):
            raise OSError(f"{self._where} still does not answer")
        try:
            self._call = BackgroundCall(partial(self._request, path, headers, method, limit), "notices-request")
        except RuntimeError as error:  # no thread can be started now
            raise OSError(str(error)) from None
        try:
            return self._call.result(limit)
        except CallTimeout:
            with contextlib.suppress(OSError):  # the request has just ended
                if self._socket is not None:
                    self._socket.shutdown(socket.SHUT_RDWR)
            raise OSError(f"{self._where} did not answer within {limit:g} s") from None
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{self._where} does not answer: {str(error).rpartition(': ')[2]}") from None

    def _request(self, path: str, headers: Mapping[str, str] | None, method: str, limit: Duration) -> Answer:
        url = self._base.rstrip("/") + path if path else self._base
        # A new pool for each request, because a service may close an idle connection just before the next request.
        with urllib3.connection_from_url(url) as pool:
            pool.ConnectionCls = self._holding(pool.ConnectionCls)
            response = pool.request(
                method,
                urllib3.util.parse_url(url).request_uri,
                headers=headers,
                timeout=urllib3.Timeout(limit),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            with contextlib.closing(response):
                body = response.read(MOST_BYTES)
                if response.read(1):  # it also raises if the body is shorter than announced
                    raise OSError(f"the response from {self._where} is longer than {MOST_BYTES} bytes")
        return Answer(response.status, body.decode(), response.headers)

    def _holding(self, kind: Any) -> Any:
        """Return a class of connections like `kind` that also leave their socket here."""

        class Connection(kind):  # type: ignore[misc]
            def connect(connection) -> None:  # noqa: N805
                super().connect()
                self._socket = connection.sock

        return Connection
