"""The contract for `get_state` and `set_state`, and the methods that a plugin's test class defines for its backend."""

from __future__ import annotations

import contextlib
import random
import threading
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from elastic_core.plugin import EntryDroppedError, RendezvousConnectionError, RendezvousStateError, SystemClock, later
from elastic_testing.waiting import LONG, Background, raises, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.plugin import RendezvousBackend, Token

T = TypeVar("T")
_CLOCK = SystemClock()
_PAUSE = 0.05
_WRITERS = 4
_TO_COUNT = 15  # the number of increments by each writer
_CANDIDATES = 6
_MOST_REFUSALS = 10_000  # per writer; each refusal should mean that another write succeeded


def written(backend: RendezvousBackend, state: bytes, token: Token | None) -> Token:
    """Write the state, which must succeed, and return the token."""
    answer = backend.set_state(state, token)
    standing = backend.get_state()
    assert standing is not None, "get_state returned no state after a write"
    assert answer in (None, (*standing, True)), f"expected {(*standing, True)!r} from set_state, found {answer!r}"
    assert standing[0] == state
    return standing[1]


def token_of(backend: RendezvousBackend) -> Token | None:
    """Return the token of the last write, or None if there is no state."""
    found = backend.get_state()
    return None if found is None else found[1]


def _refused(backend: RendezvousBackend, state: bytes, token: Token | None) -> None:
    """Check that writing the state fails. If `set_state` returns a result, it must contain the stored state."""
    before = backend.get_state()
    answer = backend.set_state(state, token)
    assert backend.get_state() == before, "a write with an old token changed the state"
    assert before is not None, "no state was stored"
    assert answer in (None, (*before, False)), f"expected {(*before, False)!r} from set_state, found {answer!r}"


def _count_up(backend: RendezvousBackend, times: int) -> None:
    """Increment the number in the state `times` times, by compare-and-swap."""
    refusals = 0
    for _ in range(times):
        while not _counted(backend):
            refusals += 1
            assert refusals < _MOST_REFUSALS, f"{refusals} writes of one client were refused"


def _counted(backend: RendezvousBackend) -> bool:
    found = backend.get_state()
    number, token = (0, None) if found is None else (int(found[0].split()[0]), found[1])
    # The state names its writer. If a backend does not report whether a write succeeded, the writer reads it back.
    state = f"{number + 1} {id(backend)}".encode()
    answer = backend.set_state(state, token)
    if answer is not None:
        return answer[2]
    found = backend.get_state()
    return found is not None and found[0] == state


class Clients:
    """The methods that a plugin's test class defines for its backend."""

    def peer(self, backend: Any) -> Any:
        """Return another client of the same job, as if it belonged to another node. The contract closes the client if
        it has a `close` method."""
        raise NotImplementedError("the test class must define peer(backend), which returns another client of the job")

    def other_job(self, backend: Any) -> Any:
        """Return a client of the same store for another job. The contract closes this client as well."""
        raise unittest.SkipTest("the test class does not define other_job")

    def lose(self, backend: Any) -> None:
        """Stop the store for good, as if its machine had failed. After that, calls to `backend` need only report
        the loss within their time limit."""
        raise unittest.SkipTest("the test class does not define lose")

    def forget(self, backend: Any) -> None:
        """Make the store lose its data, as if it had restarted at the same address. The clients stay open. The next
        call of each client may fail once with RendezvousConnectionError."""
        raise unittest.SkipTest("the test class does not define forget")

    def spoil(self, backend: Any) -> None:
        """Overwrite the state with data that this backend would never write."""
        raise unittest.SkipTest("the test class does not define spoil")

    @contextlib.contextmanager
    def peers(self, backend: Any, count: int) -> Iterator[list[Any]]:
        """Create `count` clients of the same job in addition to `backend`, and close them at the end."""
        with contextlib.ExitStack() as ending:
            made = []
            for _ in range(count):
                client = self.peer(backend)
                ending.callback(close, client)
                made.append(client)
            yield made


def close(backend: RendezvousBackend) -> None:
    """Close the backend if it has a `close` method."""
    ending: Callable[[], object] | None = getattr(backend, "close", None)
    if ending is not None:
        ending()


def once_back(call: Callable[[], T]) -> T:
    """Retry the call until the store is available again, and return its result. Raises EntryDroppedError immediately,
    because a retry would not restore the entry."""
    until = later(_CLOCK.now(), LONG)
    while True:
        try:
            return call()
        except EntryDroppedError:
            raise
        except RendezvousConnectionError:
            assert _CLOCK.now() < until, f"the store did not recover within {LONG:g} s"
            threading.Event().wait(_PAUSE)


class StatePromises(Clients):
    """See `interfaces.backend.RendezvousBackend`, and `BackendContract` for the attributes."""

    largest: ClassVar[int] = 300_000

    def test_backend_has_name(self, backend: Any) -> None:
        assert isinstance(backend.name, str)
        assert backend.name

    def test_new_job_has_no_state(self, backend: Any) -> None:
        assert backend.get_state() is None
        with self.peers(backend, 1) as (peer,):
            assert peer.get_state() is None

    def test_second_first_write_is_refused(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            assert peer.get_state() is None
            written(backend, b"first", None)
            _refused(peer, b"second", None)
            _refused(backend, b"third", None)

    def test_only_one_of_two_equal_writes_succeeds(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            token = written(backend, b"same", None)
            _refused(peer, b"same", None)
            assert backend.get_state() == (b"same", token)

    def test_two_clients_alternate_writes(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            written(backend, b"0", None)
            for number in range(1, 9):
                client, other = (peer, backend) if number % 2 else (backend, peer)
                before = client.get_state()
                assert before[0] == str(number - 1).encode()
                written(client, str(number).encode(), before[1])
                assert other.get_state()[0] == str(number).encode()

    def test_old_tokens_never_write(self, backend: Any) -> None:
        """An old token must stay invalid even if the state is rewritten, or restored after another one (the ABA
        problem). A backend that compares only the bytes would allow the write."""
        with self.peers(backend, 2) as (peer, sleeper):
            seen: list[Any] = []
            for number, state in enumerate((b"A", b"A", b"B", b"A", b"C", b"C") * 3):
                client = peer if number % 2 else backend
                written(client, state, token_of(client))
                token = sleeper.get_state()[1]
                assert token not in seen, f"the token {token!r} was used twice"
                seen.append(token)
            for outdated in seen[:-1]:
                _refused(sleeper, b"from the past", outdated)
            written(sleeper, b"from now", seen[-1])

    def test_foreign_token_writes_nothing(self, backend: Any) -> None:
        foreign = (b"", "1", object(), ("other", 1), 1.5)
        for token in foreign:
            backend.set_state(b"invalid", token)
            assert backend.get_state() is None
        written(backend, b"first", None)
        for token in foreign:
            _refused(backend, b"invalid", token)

    def test_bytes_are_kept_exactly(self, backend: Any) -> None:
        noise = random.Random(1).randbytes(self.largest)
        words = (b"\n text \r\n", "é".encode("utf-16"), b"'\"; --", b"null")
        values = (b"", bytes(range(256)), b"\x00", *words, noise, b"")
        token = None
        with self.peers(backend, 1) as (peer,):
            for value in values:
                token = written(backend, value, token)
                assert peer.get_state()[0] == value

    def test_later_client_finds_state(self, backend: Any) -> None:
        token = written(backend, b"0", None)
        for number in range(1, 10):
            token = written(backend, str(number).encode(), token)
        with self.peers(backend, 1) as (peer,):
            found = peer.get_state()
            assert found[0] == b"9"
            written(peer, b"10", found[1])
        assert backend.get_state()[0] == b"10"

    def test_one_of_concurrent_writes_wins(self, backend: Any) -> None:
        """In each turn, all clients know the same state: none in the first turn, and later the last written one."""
        with self.peers(backend, _CANDIDATES) as peers:
            for turn in range(10):
                tokens = [token_of(peer) for peer in peers]
                states = [b"%d by %d" % (turn, number) for number in range(_CANDIDATES)]
                writes = zip(peers, states, tokens, strict=True)
                answers = together([partial(peer.set_state, state, token) for peer, state, token in writes])
                standing = backend.get_state()[0]
                assert standing in states
                assert all(answer is None or answer[0] == standing for answer in answers), (
                    f"not every call returned the stored state {standing!r}: {answers}"
                )
                results = zip(states, answers, strict=True)
                winners = [state for state, answer in results if answer is not None and answer[2]]
                assert winners == [standing] or (None in answers and not winners), (
                    f"expected success only for the writer of {standing!r}, found {winners}"
                )

    def test_concurrent_increments_are_all_kept(self, backend: Any) -> None:
        with self.peers(backend, _WRITERS) as peers:
            together([partial(_count_up, peer, _TO_COUNT) for peer in peers])
        assert int(backend.get_state()[0].split()[0]) == _WRITERS * _TO_COUNT

    def test_reads_are_never_torn(self, backend: Any) -> None:
        with self.peers(backend, 3) as (writer, *readers):
            token, over = written(writer, b"0", None), threading.Event()

            def write() -> None:
                nonlocal token
                try:
                    for number in range(1, 25):
                        letter = b"%d" % (number % 10)
                        token = written(writer, letter * (1 if number % 2 else self.largest), token)
                finally:
                    over.set()

            def read(reader: Any) -> None:
                before = (b"", None)
                while not over.is_set():
                    found = reader.get_state()
                    assert len(set(found[0])) == 1, "a read returned bytes of several writes"
                    assert found[1] != before[1] or found == before, "two different states have the same token"
                    before = found

            calls: list[Callable[[], None]] = [write, *(partial(read, reader) for reader in readers)]
            together(calls)

    def test_calls_from_different_threads_work(self, backend: Any) -> None:
        """The core's threads share a backend. They make no concurrent calls if it has only the two methods."""
        token: Token = None
        for number in range(6):
            token = Background(partial(written, backend, b"%d" % number, token)).result()
        assert backend.get_state() == (b"5", token)

    def test_jobs_are_isolated(self, backend: Any) -> None:
        other = self.other_job(backend)
        try:
            written(backend, b"ours", None)
            assert other.get_state() is None
            written(other, b"theirs", None)
            assert backend.get_state()[0] == b"ours"
        finally:
            close(other)

    def test_state_calls_report_lost_store(self, backend: Any) -> None:
        token = written(backend, b"1", None)
        self.lose(backend)
        for call in (backend.get_state, lambda: backend.set_state(b"2", token), lambda: backend.set_state(b"2")):
            error = raises(RendezvousConnectionError, call)
            assert str(error), "the error has no message; it must name the store that cannot be reached"

    def test_old_token_is_invalid_after_data_loss(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            old = written(backend, b"1", None)
            assert peer.get_state() == (b"1", old)
            self.forget(backend)
            assert once_back(backend.get_state) is None, "an empty store returned a state"
            assert once_back(peer.get_state) is None, "an empty store returned a state to another client"
            once_back(lambda: backend.set_state(b"2", old))
            assert peer.get_state() is None, "a write with a token from before the data loss succeeded"
            new = written(peer, b"1", None)
            assert new != old, f"the token {old!r} of a lost write was used again"
            _refused(backend, b"3", old)
            assert backend.get_state() == (b"1", new)

    def test_foreign_value_raises_state_error(self, backend: Any) -> None:
        self.spoil(backend)
        raises(RendezvousStateError, backend.get_state)

    def test_close_is_idempotent(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            peer.get_state()
            close(peer)
            close(peer)
        assert backend.get_state() is None
