"""Entries, beats and news for a backend that has only `get_state` and `set_state`: everything lives inside the one
state, and news is asked for again and again, with backoff. It works; with many nodes a backend that keeps entries
apart is much cheaper."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.clock import later
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import Announced, RosterBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import RendezvousBackend, Token

_VERSION = 1
_MOST_REFUSALS = 1000  # each means that somebody else got through
_FIRST_PAUSE: Duration = 0.02
_LONGEST_PAUSE: Duration = 1.0


@dataclass(frozen=True)
class _Envelope:
    """What the backend's state holds: ours, the entries oldest first, the leaders' counter."""

    state: bytes | None = None
    serial: str = ""
    entries: tuple[Announced, ...] = ()
    lead: int = 0

    def index(self, key: str) -> int | None:
        return next((i for i, announced in enumerate(self.entries) if announced.key == key), None)

    def with_entry(self, entry: Announced) -> _Envelope:
        place = self.index(entry.key)
        if place is None:
            return replace(self, entries=(*self.entries, entry))
        return replace(self, entries=(*self.entries[:place], entry, *self.entries[place + 1 :]))

    @property
    def roster_mark(self) -> tuple[tuple[str, bytes], ...]:
        """Changes when somebody comes, goes, or announces something new; not with beats."""
        return tuple((announced.key, announced.entry) for announced in self.entries)


@dataclass
class _Waiting:
    """What the threads that wait have seen, and how they are told to stop."""

    closed: threading.Event = field(default_factory=threading.Event)
    roster: tuple[tuple[str, bytes], ...] = ()


class StateEntries(RosterBackend):
    """A `RosterBackend` over any backend; its calls are made one at a time, for the backend may have one connection."""

    def __init__(self, backend: RendezvousBackend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = _Waiting()

    @property
    def name(self) -> str:
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        envelope, _ = self._read()
        return None if envelope.state is None else (envelope.state, envelope.serial)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        serial = secrets.token_hex(8)

        def change(envelope: _Envelope) -> _Envelope:
            stands = (token or "") == envelope.serial
            return replace(envelope, state=state, serial=serial) if stands else envelope

        envelope = self._change(change)
        if envelope.state is None:
            return None
        return envelope.state, envelope.serial, envelope.serial == serial

    def announce(self, key: str, entry: bytes) -> int:
        def change(envelope: _Envelope) -> _Envelope:
            place = envelope.index(key)
            beats = 0 if place is None else envelope.entries[place].beats
            return envelope.with_entry(Announced(key, entry, (beats or 0) + 1))

        return self._change(change).index(key) or 0

    def withdraw(self, key: str) -> None:
        def change(envelope: _Envelope) -> _Envelope:
            others = tuple(announced for announced in envelope.entries if announced.key != key)
            return envelope if len(others) == len(envelope.entries) else replace(envelope, entries=others)

        self._change(change)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        def change(envelope: _Envelope) -> _Envelope:
            place = envelope.index(key)
            if place is not None:
                entry = envelope.entries[place]
                envelope = envelope.with_entry(replace(entry, beats=(entry.beats or 0) + 1))
            return replace(envelope, lead=envelope.lead + leading)

        envelope = self._change(change)
        return envelope.lead if leading or look else None

    def roster(self) -> tuple[Announced, ...]:
        envelope, _ = self._read()
        self._waiting.roster = envelope.roster_mark
        return envelope.entries

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        return self._wait(lambda envelope: envelope.serial != (token or ""), timeout)

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        return self._wait(lambda envelope: envelope.roster_mark != self._waiting.roster, timeout)

    def close(self) -> None:
        """The waits come back; the backend has nothing to close that we know of, unless it has a `close` itself."""
        if not self._waiting.closed.is_set():
            self._waiting.closed.set()
            close: Callable[[], object] | None = getattr(self._backend, "close", None)
            if close is not None:
                close()

    def _wait(self, changed: Callable[[_Envelope], bool], timeout: Duration) -> bool:
        until = later(self._clock.now(), timeout)
        pause = _FIRST_PAUSE
        while not self._waiting.closed.is_set():
            if changed(self._read()[0]):
                return True
            left = until - self._clock.now()
            if left <= 0:
                return False
            self._waiting.closed.wait(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        return False

    def _read(self) -> tuple[_Envelope, Token | None]:
        with self._lock:
            found = self._backend.get_state()
        return (_Envelope(), None) if found is None else (_decoded(found[0]), found[1])

    def _change(self, change: Callable[[_Envelope], _Envelope]) -> _Envelope:
        """The envelope that stands afterwards."""
        envelope, token = self._read()
        for _ in range(_MOST_REFUSALS):
            changed = change(envelope)
            if changed is envelope:
                return envelope
            data = _encoded(changed)
            with self._lock:
                # A backend that does not tell what stands is asked: what we wrote names the change, or the node.
                found = self._backend.set_state(data, token) or _compared(self._backend.get_state(), data)
            if found is None:
                envelope, token = _Envelope(), None
                continue
            envelope, token = _decoded(found[0]), found[1]
            if found[2]:
                return envelope
        raise RendezvousConnectionError(
            f"expected to write the state of the backend {self.name!r} within {_MOST_REFUSALS} attempts, found that "
            "others always did first; a backend with entries of their own (RosterBackend) does not have this limit"
        )


def _compared(found: tuple[bytes, Token] | None, data: bytes) -> tuple[bytes, Token, bool] | None:
    return None if found is None else (*found, found[0] == data)


def _encoded(envelope: _Envelope) -> bytes:
    document = {
        "version": _VERSION,
        "state": None if envelope.state is None else base64.b64encode(envelope.state).decode(),
        "serial": envelope.serial,
        "entries": [[a.key, base64.b64encode(a.entry).decode(), a.beats] for a in envelope.entries],
        "lead": envelope.lead,
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _decoded(data: bytes) -> _Envelope:
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        return _envelope(document)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RendezvousStateError(
            f"expected a rendezvous state of version {_VERSION}, found {data[:80]!r} ({error}); every node of a job "
            "needs the same version of elastic-core, and no other program may use the same endpoint and --rdzv-id"
        ) from error


def _envelope(document: dict[str, Any]) -> _Envelope:
    state, serial, lead = document["state"], document["serial"], document["lead"]
    if not isinstance(serial, str) or not isinstance(lead, int):
        raise TypeError("a field of the wrong type")
    entries = tuple(_announced(*item) for item in document["entries"])
    return _Envelope(None if state is None else base64.b64decode(state, validate=True), serial, entries, lead)


def _announced(key: Any, entry: Any, beats: Any) -> Announced:
    if not isinstance(key, str) or not isinstance(beats, int):
        raise TypeError("an entry of the wrong type")
    return Announced(key, base64.b64decode(entry, validate=True), beats)
