"""What is asked and what is answered, without a thought of how it travels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration

Headers = tuple[tuple[str, str], ...]

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFE: Headers = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""In every answer: nothing is guessed, framed, told to others or kept."""


@dataclass(frozen=True)
class Request:
    """One request, as far as anybody here looks at it. Names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Response:
    """One answer. `policy`: what a browser may load for it."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    policy: str = POLICY

    def all_headers(self) -> Headers:
        """With those that every answer has."""
        return (
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("Connection", "close"),
            ("Content-Security-Policy", self.policy),
            *SAFE,
            *self.headers,
        )


@dataclass(frozen=True)
class Waiting:
    """The request is answered later: when the agent's status is another than `change`, or after `seconds`."""

    change: int
    seconds: Duration


def text(status: int, words: str, *headers: tuple[str, str]) -> Response:
    """An answer in words. What cannot be written as UTF-8 is shown by number."""
    return Response(status, f"{words}\n".encode("utf-8", "backslashreplace"), headers=headers)


def json_bytes(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def as_json(body: bytes) -> Response:
    return Response(200, body, "application/json")
