"""What is asked of an etcd over HTTP: no gRPC is needed, and the messages about members, which are younger than the
description that the client reads, are plain JSON here."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from elastic_core.support.sockets import unreachable
from elastic_etcd.server.cluster import Answer, heard_of, members_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from elastic_core.clock import Duration
    from elastic_etcd.server.cluster import Place

_PATIENCE: Duration = 1.0  # for one answer
_LONGEST_ANSWER = 64 * 1024  # bytes
_LONGEST_METRICS = 1024 * 1024


class Refused(Exception):
    """An etcd, or something else that speaks HTTP, has answered, and not as was asked."""


UNUSABLE = (OSError, Refused, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What may come of asking somebody who need not be an etcd, and of reading what was answered."""


def ask(url: str, body: Any = None, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> Any:
    """The answer at this address, out of JSON. `body`: what to send, as JSON; None to send nothing.

    Raises:
        OSError: nobody answers.
        Refused: somebody refuses.
        ValueError, RecursionError: it is no answer of an etcd.
    """
    sent = None if body is None else json.dumps(body).encode()
    return json.loads(_fetched(url, sent, timeout, security, _LONGEST_ANSWER))


def _fetched(url: str, sent: bytes | None, timeout: float, security: ssl.SSLContext | None, longest: int) -> bytes:
    """The answer, up to so many bytes. Raises as `ask`."""
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """None: what an etcd would not send is an error."""

    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=security), NoRedirects)
    try:
        with urllib.request.build_opener(*handlers).open(url, sent, timeout) as answer:
            return bytes(answer.read(longest))
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(_words(error.read(_LONGEST_ANSWER)) or f"HTTP status {error.code}") from None
    except http.client.HTTPException as error:
        raise ValueError(f"{url} does not speak HTTP") from error


def is_healthy(url: str, timeout: float = 1.0, security: ssl.SSLContext | None = None) -> bool:
    """Whether an etcd there says that it serves, which needs a quorum. Raises as `ask`."""
    return bool(ask(f"{url}/health", None, timeout, security)["health"] == "true")


class Gateway:
    """Asks members about their cluster. Every call raises one of UNUSABLE, unless it says otherwise.

    Args:
        security: for TLS; None: in plain text.
    """

    def __init__(self, security: ssl.SSLContext | None = None) -> None:
        self._security = security

    def at(self, place: Place, path: str, **words: Any) -> Any:
        """The answer of the member there."""
        return ask(f"{place.url}/v3/{path}", words, _PATIENCE, self._security)

    def look(self, places: Sequence[Place]) -> list[Answer]:
        """What is answered at these places, all asked at once; nothing of those whose machine is not there. Takes a few
        seconds at most, and raises nothing."""
        asked = {place.address: place for place in places}
        silent = unreachable({name: (place.host, place.port) for name, place in asked.items()}, _PATIENCE)
        there = [place for name, place in asked.items() if name not in silent]
        with ThreadPoolExecutor(len(there) or 1) as pool:
            return list(pool.map(self._answer, there))

    def leader(self, answers: Sequence[Answer]) -> str:
        """The id of the member that leads, as one of those that find a majority knows it; empty if none tells. Raises
        nothing."""
        for answer in answers:
            if answer.healthy:
                with contextlib.suppress(*UNUSABLE):
                    return str(self.at(answer.place, "maintenance/status")["leader"])
        return ""

    def heard(self, answers: Sequence[Answer]) -> dict[tuple[str, str], float]:
        """How many bytes each member that finds a majority has heard from each other one, by its address and their ids.
        Raises nothing."""
        found: dict[tuple[str, str], float] = {}
        for answer in answers:
            if answer.healthy:
                with contextlib.suppress(*UNUSABLE):
                    metrics = _fetched(f"{answer.place.url}/metrics", None, _PATIENCE, self._security, _LONGEST_METRICS)
                    found |= {(answer.place.address, peer): count for peer, count in heard_of(metrics).items()}
        return found

    def _answer(self, place: Place) -> Answer:
        try:
            members = members_of(self.at(place, "cluster/member/list"))
        except UNUSABLE as error:
            refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
            return Answer(place, not refused, isinstance(error, Refused))
        try:
            return Answer(place, True, True, members, is_healthy(place.url, _PATIENCE, self._security))
        except UNUSABLE:
            return Answer(place, True, True, members)


def _words(answer: bytes) -> str:
    try:
        told = json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return "".join(it if it.isprintable() else "?" for it in str(told)[:200])
