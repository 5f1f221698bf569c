"""What is asked of an etcd over HTTP: no gRPC is needed, and the messages about members, which are younger than the
description that the client reads, are plain JSON here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

_LONGEST_ANSWER = 64 * 1024  # bytes


class Refused(Exception):
    """An etcd, or something else that speaks HTTP, has answered, and not as was asked."""


def ask(url: str, body: Any = None, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> Any:
    """The answer at this address, out of JSON. `body`: what to send, as JSON; None to send nothing.

    Raises:
        OSError: nobody answers.
        Refused: somebody refuses.
        ValueError, RecursionError: it is no answer of an etcd.
    """
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """None: what an etcd would not send is an error."""

    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=security), NoRedirects)
    sent = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.build_opener(*handlers).open(url, sent, timeout) as answer:
            return json.loads(answer.read(_LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(_words(error.read(_LONGEST_ANSWER)) or f"HTTP status {error.code}") from None
    except http.client.HTTPException as error:
        raise ValueError(f"{url} does not speak HTTP") from error


def is_healthy(url: str, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> bool:
    """Whether an etcd there says that it serves, which needs a quorum. Raises as `ask`."""
    return bool(ask(f"{url}/health", None, timeout, security)["health"] == "true")


def _words(answer: bytes) -> str:
    try:
        told = json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return "".join(it if it.isprintable() else "?" for it in str(told)[:200])
