"""Signatures of what nodes write into the store: HMAC-SHA256 with a key that is derived from the job's secret and its
run id, over the place where the bytes stand and the bytes. Who does not know the secret can neither write nor move what
passes for a node's; only remove it, or put something else there, which is as if nothing were there.

A place is the name of a thing in the backend: a version of the state in one epoch of a store, say. A backend in whose
places different bytes stand one after the other cannot tell an old value that was put back from a new one; what the
nodes agree on is counted up with every change, so that they can.
"""

from __future__ import annotations

import hmac
import threading
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, ElasticError, Problem
from elastic_core.interfaces.backend import SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.support.secret_files import read_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.interfaces.backend import Token
    from elastic_core.interfaces.handler import RendezvousParameters

MARK = b"signed "
_HEX = 64
_ID = 8
_LENGTH = len(MARK) + _ID + 1 + _HEX + 1
LEAST_SECRET = 16
_MOST_SECRETS = 8
_MOST_TOLD = 64
_STATE = b'{"version":'


class HmacSeal:
    """Signs and checks for one job. Without a secret all bytes pass as they are. Thread-safe.

    Args:
        run_id: the job; the key is derived for it.
        secrets: the first signs; what is signed with any of them is ours. None: nothing is signed.
        reread: the secrets as they are now, asked for when something is signed with another one: it may be new.

    Attributes:
        refused: in how many places something stood, at a time, that was not signed with one of the secrets for that
            place.
    """

    def __init__(
        self, run_id: str, secrets: Sequence[bytes] = (), reread: Callable[[], Sequence[bytes]] | None = None
    ) -> None:
        self._run_id = run_id
        self._reread = reread
        self._keys = _keys_of(run_id, secrets)
        self._lock = threading.Lock()
        self._told: set[tuple[str, bytes]] = set()
        self.refused = 0

    @property
    def signs(self) -> bool:
        """Whether there is a secret."""
        return bool(self._keys)

    def sealed(self, place: str, data: bytes) -> bytes:
        """The bytes with a signature, for this place only."""
        if not self._keys:
            return data
        identity, key = next(iter(self._keys.items()))
        return _head(identity, key, place, data) + data

    def opened(self, place: str, value: bytes) -> bytes | None:
        """The bytes without the signature; None for what nobody has signed for this place who knows a secret. That is
        counted, and logged once."""
        if not self._keys:
            return value
        head, data = value[:_LENGTH], value[_LENGTH:]
        identity = head[len(MARK) : len(MARK) + _ID]
        found = "what is not signed"
        if head.startswith(MARK) and len(head) == _LENGTH:
            key = self._keys.get(identity) or self._newer(place, head).get(identity)
            if key is None:
                found = "what is signed with another secret"
            elif hmac.compare_digest(head, _head(identity, key, place, data)):
                return data
            else:
                found = "what is signed for another place or was changed"
        self._refuse(place, head, found)
        return None

    def is_others(self, value: bytes) -> bool:
        """Whether it looks as if nodes with another secret, or with one where this one has none, had signed it."""
        return value.startswith(MARK) and value[len(MARK) : len(MARK) + _ID] not in self._keys

    def state(self, place: str, value: bytes, token: Token) -> bytes:
        """The same for a state. Raises SpoiltStateError: it is none of ours."""
        found = self.opened(place, value)
        if found is not None:
            return found
        others = self.is_others(value) or value.startswith(_STATE)
        raise SpoiltStateError(
            f"expected a state that is signed with this job's secret under {place!r}, found {value[:40]!r}; every node "
            "of a job needs the same --rdzv-secret-file",
            token,
            others,
            secret=True,
        )

    def _newer(self, place: str, head: bytes) -> Mapping[bytes, bytes]:
        """The keys, once the secrets were read again: not for what was refused already."""
        if self._reread is not None and (place, head) not in self._told:
            try:
                self._keys = _keys_of(self._run_id, self._reread())
            except ElasticError as error:  # whoever writes it now has not finished
                get_logger().warning("secret not read", reason=str(error))
        return self._keys

    def _refuse(self, place: str, head: bytes, found: str) -> None:
        with self._lock:
            if (place, head) in self._told:
                return
            self.refused += 1
            if len(self._told) >= _MOST_TOLD:
                return  # somebody writes all the time; it is counted
            self._told.add((place, head))
        get_logger().warning("not signed", place=place, reason=f"found {found}; it is passed over")


def _keys_of(run_id: str, secrets: Sequence[bytes]) -> dict[bytes, bytes]:
    """By the beginning of a digest, which tells what is signed with one from what is signed with another."""
    keys = [_digest(secret, b"elastic-core rendezvous", run_id.encode()) for secret in secrets]
    return {_digest(key, b"id").hex()[:_ID].encode(): key for key in keys}


def _head(identity: bytes, key: bytes, place: str, data: bytes) -> bytes:
    signature = _digest(key, place.encode("utf-8", "surrogatepass"), data).hex().encode()
    return b"%s%s %s " % (MARK, identity, signature)


def _digest(key: bytes, *parts: bytes) -> bytes:
    """Of the parts, each with its length, so that no two lists of parts have one digest."""
    return hmac.digest(key, b"".join(b"%d:%s" % (len(part), part) for part in parts), "sha256")


def seal_of(params: RendezvousParameters) -> HmacSeal:
    """The seal of the job, with the secrets in the file that the option `secret_file` names. Raises
    ConfigurationError: that cannot be read, or is open to others."""
    path = params.get("secret_file")
    reread = partial(_secrets_in, path) if path else tuple
    return HmacSeal(params.run_id, reread(), reread)


def _secrets_in(path: str) -> tuple[bytes, ...]:
    """One on each line that is not empty."""
    try:
        found = tuple(line for line in (line.strip() for line in read_secret(path).splitlines()) if line)
        if not 1 <= len(found) <= _MOST_SECRETS:
            raise ValueError(f"expected 1 to {_MOST_SECRETS} secrets in {path}, one on a line, found {len(found)}")
        if (shortest := min(map(len, found))) < LEAST_SECRET:
            raise ValueError(
                f"expected secrets of {LEAST_SECRET} bytes or more in {path}, found one of {shortest}; make one with: "
                f"(umask 077; openssl rand -base64 32 > {path})"
            )
    except ValueError as error:
        raise ConfigurationError(Problem("--rdzv-secret-file", str(error))) from None
    return found
