"""Signs the values that nodes write into the store. A signature is an HMAC-SHA256 over the value and its place, with a
key derived from the job's secret and run id. A client without the secret can neither forge a node's value nor move one
to another place. It can only delete or overwrite a value, and nodes then treat the place as empty.

A place is a name in the backend, such as a version of the state in one epoch of a store. If a place holds several
values in succession, the signature does not reveal whether an old value was put back. For the state, the serial number
reveals this.
"""

from __future__ import annotations

import hmac
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from elastic_core.errors import ConfigurationError, ElasticError, Problem
from elastic_core.interfaces.backend import Announced, ForeignStateError, RosterBackend
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Seal, Token
    from elastic_core.interfaces.handler import RendezvousParameters

T = TypeVar("T")
MARK = b"signed "
_HEX = 64
_ID = 8
_LENGTH = len(MARK) + _ID + 1 + _HEX + 1
LEAST_SECRET = 16
_MOST_SECRETS = 8
_MOST_LOGGED = 64
_STATE = b'{"version":'
_STATE_PLACE = "state"


class HmacSeal:
    """Signs and checks one job's values. Without a secret, the seal does nothing. Thread-safe.

    Args:
        run_id: the job's run id.
        secrets: the first secret is used to sign, and a signature with any of the secrets is valid. Without secrets,
            nothing is signed.
        reread: reads the secrets again, in case a value is signed with a new secret.

    Attributes:
        refused: the number of values found without a valid signature for their place.
    """

    def __init__(
        self, run_id: str, secrets: Sequence[bytes] = (), reread: Callable[[], Sequence[bytes]] | None = None
    ) -> None:
        self._run_id = run_id
        self._reread = reread
        self._keys = _keys_of(run_id, secrets)
        self._lock = threading.Lock()
        self._logged: set[tuple[str, bytes]] = set()
        self.refused = 0

    @property
    def signs(self) -> bool:
        """Whether there is a secret."""
        return bool(self._keys)

    def sealed(self, place: str, data: bytes) -> bytes:
        """Return the bytes with a signature for this place."""
        if not self._keys:
            return data
        identity, key = next(iter(self._keys.items()))
        return _head(identity, key, place, data) + data

    def opened(self, place: str, value: bytes) -> bytes | None:
        """Return the bytes without the signature, or None if the signature is not valid for this place. Each value with
        an invalid signature is counted and logged once."""
        if not self._keys:
            return value
        head, data = value[:_LENGTH], value[_LENGTH:]
        identity = head[len(MARK) : len(MARK) + _ID]
        found = "an unsigned value"
        if head.startswith(MARK) and len(head) == _LENGTH:
            key = self._keys.get(identity) or self._newer(place, head).get(identity)
            if key is None:
                found = "a value signed with another secret"
            elif hmac.compare_digest(head, _head(identity, key, place, data)):
                return data
            else:
                found = "a value that was changed or signed for another place"
        self._refuse(place, head, found)
        return None

    def is_others(self, value: bytes) -> bool:
        """Return whether the value may have been signed by nodes with another secret or, if this node has no secret, by
        nodes with one."""
        return value.startswith(MARK) and value[len(MARK) : len(MARK) + _ID] not in self._keys

    def state(self, place: str, value: bytes, token: Token) -> bytes:
        """Return the state without its signature. Raises ForeignStateError if the signature is not valid for this
        place."""
        found = self.opened(place, value)
        if found is not None:
            return found
        others = self.is_others(value) or value.startswith(_STATE)
        raise ForeignStateError(
            f"expected a state signed with this job's secret under {place!r}, found {value[:40]!r}; every node "
            "of a job needs the same --rdzv-secret-file",
            token,
            others,
            secret=True,
        )

    def _newer(self, place: str, head: bytes) -> Mapping[bytes, bytes]:
        """Return the keys after reading the secrets again. The secrets are not read if this value has already been
        refused."""
        if self._reread is not None and (place, head) not in self._logged:
            try:
                self._keys = _keys_of(self._run_id, self._reread())
            except ElasticError as error:  # perhaps a user is replacing the file right now
                get_logger().warning("secret not read", reason=str(error))
        return self._keys

    def _refuse(self, place: str, head: bytes, found: str) -> None:
        with self._lock:
            if (place, head) in self._logged:
                return
            self.refused += 1
            if len(self._logged) >= _MOST_LOGGED:
                return  # a client keeps writing such values, so only count them
            self._logged.add((place, head))
        get_logger().warning("not signed", place=place, reason=f"found {found}; it is ignored")


def _keys_of(run_id: str, secrets: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the keys by id. Each signature contains the id of its key."""
    keys = [_digest(secret, b"elastic-core rendezvous", run_id.encode()) for secret in secrets]
    return {_digest(key, b"id").hex()[:_ID].encode(): key for key in keys}


def _head(identity: bytes, key: bytes, place: str, data: bytes) -> bytes:
    signature = _digest(key, place.encode("utf-8", "surrogatepass"), data).hex().encode()
    return b"%s%s %s " % (MARK, identity, signature)


def _digest(key: bytes, *parts: bytes) -> bytes:
    """Return a digest over all parts and their lengths, so that different lists of parts have different digests."""
    return hmac.digest(key, b"".join(b"%d:%s" % (len(part), part) for part in parts), "sha256")


class SignedBackend(RosterBackend):
    """Signs the states and entries of a backend that cannot sign, and owns that backend. In such a backend, new values
    replace old ones in the same place. If an attacker puts back an old signed value, it is therefore accepted."""

    def __init__(self, backend: RosterBackend, seal: Seal) -> None:
        self._backend = backend
        self._seal = seal
        self._opened: dict[tuple[str, bytes], bytes | None] = {}

    @property
    def name(self) -> str:
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        found = _checked(self._backend.get_state)
        return None if found is None else (self._seal.state(_STATE_PLACE, *found), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = _checked(lambda: self._backend.set_state(self._seal.sealed(_STATE_PLACE, state), token))
        return None if found is None else (self._seal.state(_STATE_PLACE, *found[:2]), *found[1:])

    def announce(self, key: str, entry: bytes) -> int:
        return self._backend.announce(key, self._seal.sealed(f"entry/{key}", entry))

    def withdraw(self, key: str) -> None:
        self._backend.withdraw(key)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        return self._backend.beat(key, leading, look)

    def roster(self) -> tuple[Announced, ...]:
        found, known = self._backend.roster(), self._opened
        self._opened = {
            (key, entry): known[key, entry] if (key, entry) in known else self._seal.opened(f"entry/{key}", entry)
            for key, entry in ((item.key, item.entry) for item in found)
        }
        opened = ((item, self._opened[item.key, item.entry]) for item in found)
        return tuple(Announced(item.key, entry, item.beats) for item, entry in opened if entry is not None)

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        return self._backend.wait_for_state(token, timeout)

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        return self._backend.wait_for_roster(timeout, more)

    @property
    def vacant(self) -> bool:
        return self._backend.vacant

    @property
    def lease_ttl(self) -> Duration | None:
        return self._backend.lease_ttl

    @property
    def grace(self) -> Duration:
        return self._backend.grace

    @property
    def hosts_store(self) -> bool:
        return self._backend.hosts_store

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        return self._backend.hand_over(heirs, timeout)

    def store_members(self) -> Sequence[str]:
        return self._backend.store_members()

    def close(self) -> None:
        self._backend.close()


def _checked(call: Callable[[], T]) -> T:
    """Call the backend. If the backend itself rejects the data, record in the error that the data cannot belong to
    nodes with another secret, because it is not signed."""
    try:
        return call()
    except ForeignStateError as error:
        error.others = False
        raise


def seal_of(params: RendezvousParameters) -> HmacSeal:
    """Return the job's seal, with the secrets from the file that the option `secret_file` names. Raises
    ConfigurationError if the file cannot be read or other users can read it."""
    path = params.get("secret_file")
    reread = partial(_secrets_in, path) if path else tuple
    return HmacSeal(params.run_id, reread(), reread)


def _secrets_in(path: str) -> tuple[bytes, ...]:
    from elastic_core.support.secret_files import read_secret  # imported only for signed jobs

    try:
        found = tuple(line for line in (line.strip() for line in read_secret(path).splitlines()) if line)
        if not 1 <= len(found) <= _MOST_SECRETS:
            raise ValueError(f"expected 1 to {_MOST_SECRETS} secrets in {path}, one per line, found {len(found)}")
        if (shortest := min(map(len, found))) < LEAST_SECRET:
            raise ValueError(
                f"every secret in {path} must be at least {LEAST_SECRET} bytes long, but the shortest has {shortest}; "
                f"create one with: (umask 077; openssl rand -base64 32 > {path})"
            )
    except ValueError as error:
        raise ConfigurationError(Problem("--rdzv-secret-file", str(error))) from None
    return found
