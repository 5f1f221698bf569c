"""The methods by which a plugin describes its backend to the contract, and the contract of `get_state` and
`set_state`."""

from __future__ import annotations

import contextlib
import random
import threading
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import EntryDroppedError
from elastic_testing.waiting import LONG, Background, raised, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.interfaces.backend import RendezvousBackend, Token

T = TypeVar("T")
_CLOCK = SystemClock()
_PAUSE = 0.05
_WRITERS = 4
_TO_COUNT = 15  # by each of them
_CANDIDATES = 6
_MOST_REFUSALS = 10_000  # of one writer; each refusal should mean that another write succeeded


def written(backend: RendezvousBackend, state: bytes, token: Token | None) -> Token:
    """Write the state, which must succeed, and return the token."""
    answer = backend.set_state(state, token)
    standing = backend.get_state()
    assert standing is not None, "expected a state after it was written, found none"
    assert answer in (None, (*standing, True)), f"expected to be told what stands and that it is ours, found {answer!r}"
    assert standing[0] == state
    return standing[1]


def _refused(backend: RendezvousBackend, state: bytes, token: Token | None) -> None:
    """Try to write the state, which must fail and return the stored state, if the backend returns one."""
    before = backend.get_state()
    answer = backend.set_state(state, token)
    assert backend.get_state() == before, "expected that a write with an old token changes nothing, found that it did"
    assert before is not None, "expected a state that stands in the way"
    assert answer in (None, (*before, False)), f"expected to be told what stands ({before[1]!r}), found {answer!r}"


def _count_up(backend: RendezvousBackend, times: int) -> None:
    """Increment the number in the state `times` times, by compare-and-swap."""
    refusals = 0
    for _ in range(times):
        while not _counted(backend):
            refusals += 1
            assert refusals < _MOST_REFUSALS, f"expected to write at last, found {refusals} writes refused"


def _counted(backend: RendezvousBackend) -> bool:
    found = backend.get_state()
    number, token = (0, None) if found is None else (int(found[0].split()[0]), found[1])
    # The state includes the writer: if a backend does not report whether a write succeeded, the state is read.
    state = f"{number + 1} {id(backend)}".encode()
    answer = backend.set_state(state, token)
    if answer is not None:
        return answer[2]
    found = backend.get_state()
    return found is not None and found[0] == state


class Clients:
    """Methods by which a plugin describes its backend to the contract."""

    def peer(self, backend: Any) -> Any:
        """Another client of the same job, as on another node. The contract closes it, if it has a `close`."""
        raise NotImplementedError("expected a method peer(backend) that makes another client of the same job")

    def other_job(self, backend: Any) -> Any:
        """A client of the same store for another job. The contract closes it, too."""
        raise unittest.SkipTest("it does not say how to make a client for another job (other_job)")

    def lose(self, backend: Any) -> None:
        """Take the store away for good, as when its machine fails. Afterwards, `backend` only has to report that in
        time."""
        raise unittest.SkipTest("it does not say how to take its store away (lose)")

    def forget(self, backend: Any) -> None:
        """Make the store lose its data, as after a restart at the same address. The clients remain; their next calls
        may fail once with RendezvousConnectionError."""
        raise unittest.SkipTest("it does not say how to make its store lose its memory (forget)")

    def spoil(self, backend: Any) -> None:
        """Overwrite the state with data that this backend would never write."""
        raise unittest.SkipTest("it does not say how to spoil its state (spoil)")

    @contextlib.contextmanager
    def peers(self, backend: Any, count: int) -> Iterator[list[Any]]:
        """`count` clients of the same job in addition to `backend`, which are closed at the end."""
        with contextlib.ExitStack() as ending:
            made = []
            for _ in range(count):
                client = self.peer(backend)
                ending.callback(close, client)
                made.append(client)
            yield made


def close(backend: RendezvousBackend) -> None:
    """Close the backend, if it has a `close`."""
    ending: Callable[[], object] | None = getattr(backend, "close", None)
    if ending is not None:
        ending()


def once_back(call: Callable[[], T]) -> T:
    """Retry the call until the store is available again, and return its result. Dropped entries remain dropped."""
    until = later(_CLOCK.now(), LONG)
    while True:
        try:
            return call()
        except EntryDroppedError:
            raise
        except RendezvousConnectionError:
            assert _CLOCK.now() < until, f"expected the store to be back within {LONG:g} s"
            threading.Event().wait(_PAUSE)


class StatePromises(Clients):
    """See `interfaces.backend.RendezvousBackend`.

    Attributes:
        largest: bytes of the largest state that is tried.
    """

    largest: ClassVar[int] = 300_000

    def test_it_has_a_name(self, backend: Any) -> None:
        assert isinstance(backend.name, str)
        assert backend.name

    def test_a_new_job_has_no_state(self, backend: Any) -> None:
        assert backend.get_state() is None
        with self.peers(backend, 1) as (peer,):
            assert peer.get_state() is None

    def test_the_first_write_has_no_token_and_everybody_reads_it(self, backend: Any) -> None:
        written(backend, b"first", None)
        with self.peers(backend, 1) as (peer,):
            assert peer.get_state()[0] == b"first"

    def test_a_second_first_write_is_refused(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            assert peer.get_state() is None
            written(backend, b"first", None)
            _refused(peer, b"second", None)
            _refused(backend, b"third", None)

    def test_two_that_write_the_same_do_not_both_believe_they_did(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            token = written(backend, b"same", None)
            _refused(peer, b"same", None)
            assert backend.get_state() == (b"same", token)

    def test_two_clients_take_turns(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            written(backend, b"0", None)
            for number in range(1, 9):
                client, other = (peer, backend) if number % 2 else (backend, peer)
                before = client.get_state()
                assert before[0] == str(number - 1).encode()
                written(client, str(number).encode(), before[1])
                assert other.get_state()[0] == str(number).encode()

    def test_old_tokens_never_write_however_old(self, backend: Any) -> None:
        with self.peers(backend, 1) as (sleeper,):
            token = written(backend, b"0", None)
            old = [sleeper.get_state()[1]]
            for number in range(1, 20):
                token = written(backend, str(number).encode(), token)
                old.append(sleeper.get_state()[1])
            for outdated in old[:-1]:
                _refused(sleeper, b"from the past", outdated)
            written(sleeper, b"from now", old[-1])

    def test_a_token_that_is_none_of_its_own_writes_nothing(self, backend: Any) -> None:
        foreign = (b"", "1", object(), ("other", 1), 1.5)
        for token in foreign:
            backend.set_state(b"by nobody", token)
            assert backend.get_state() is None
        written(backend, b"first", None)
        for token in foreign:
            _refused(backend, b"by nobody", token)

    def test_a_state_that_comes_back_does_not_bring_its_token_back(self, backend: Any) -> None:
        """The ABA problem: a client that read A, before B and then A were written, must not write. Comparing only the
        bytes would let it."""
        with self.peers(backend, 1) as (sleeper,):
            token = written(backend, b"A", None)
            old = sleeper.get_state()[1]
            token = written(backend, b"B", token)
            written(backend, b"A", token)
            _refused(sleeper, b"C", old)

    def test_every_write_has_a_token_of_its_own(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            token, seen = None, []
            for client in (backend, peer) * 8:
                found = client.get_state()
                token = written(client, b"the same", None if found is None else found[1])
                seen.append(token)
            assert all(token not in seen[:place] for place, token in enumerate(seen))

    def test_a_token_says_whether_the_state_is_another(self, backend: Any) -> None:
        written(backend, b"1", None)
        assert backend.get_state() == backend.get_state()

    def test_bytes_are_kept_exactly(self, backend: Any) -> None:
        noise = random.Random(1).randbytes(self.largest)
        words = (b"\n text \r\n", "é".encode("utf-16"), b"'\"; --", b"null")
        values = (b"", bytes(range(256)), b"\x00", *words, noise, b"")
        token = None
        with self.peers(backend, 1) as (peer,):
            for value in values:
                token = written(backend, value, token)
                assert peer.get_state()[0] == value

    def test_who_comes_later_finds_the_state(self, backend: Any) -> None:
        token = written(backend, b"0", None)
        for number in range(1, 10):
            token = written(backend, str(number).encode(), token)
        with self.peers(backend, 1) as (peer,):
            found = peer.get_state()
            assert found[0] == b"9"
            written(peer, b"10", found[1])
        assert backend.get_state()[0] == b"10"

    def test_of_many_that_write_at_the_same_time_one_wins(self, backend: Any) -> None:
        """All clients know the same state: first none, and then always the one written last."""
        with self.peers(backend, _CANDIDATES) as peers:
            for turn in range(10):
                found = [peer.get_state() for peer in peers]
                tokens = [None if known is None else known[1] for known in found]
                states = [b"%d by %d" % (turn, number) for number in range(_CANDIDATES)]
                writes = zip(peers, states, tokens, strict=True)
                answers = together([partial(peer.set_state, state, token) for peer, state, token in writes])
                standing = backend.get_state()[0]
                assert standing in states
                assert all(told is None or told[0] == standing for told in answers), "expected all to be told of it"
                winners = [state for state, told in zip(states, answers, strict=True) if told is not None and told[2]]
                assert winners == [standing] or (None in answers and not winners), (
                    f"expected the writer of {standing!r} alone to be told that it won, found {winners}"
                )

    def test_writers_at_the_same_time_lose_nothing(self, backend: Any) -> None:
        with self.peers(backend, _WRITERS) as peers:
            together([partial(_count_up, peer, _TO_COUNT) for peer in peers])
        assert int(backend.get_state()[0].split()[0]) == _WRITERS * _TO_COUNT

    def test_a_reading_is_never_torn(self, backend: Any) -> None:
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
                    assert len(set(found[0])) == 1, "expected the bytes of one write, found those of several"
                    assert found[1] != before[1] or found == before, "expected another state to have another token"
                    before = found

            calls: list[Callable[[], None]] = [write, *(partial(read, reader) for reader in readers)]
            together(calls)

    def test_it_may_be_called_from_any_thread_one_at_a_time(self, backend: Any) -> None:
        """The core's threads share a backend, but never call one with two methods concurrently."""
        token: Token = None
        for number in range(6):
            token = Background(partial(written, backend, b"%d" % number, token)).result()
        assert backend.get_state() == (b"5", token)

    def test_jobs_do_not_see_each_other(self, backend: Any) -> None:
        other = self.other_job(backend)
        try:
            written(backend, b"ours", None)
            assert other.get_state() is None
            written(other, b"theirs", None)
            assert backend.get_state()[0] == b"ours"
        finally:
            close(other)

    def test_a_store_that_is_gone_is_told_as_that(self, backend: Any) -> None:
        token = written(backend, b"1", None)
        self.lose(backend)
        for call in (backend.get_state, lambda: backend.set_state(b"2", token), lambda: backend.set_state(b"2")):
            error = raised(call)
            assert isinstance(error, RendezvousConnectionError), f"expected RendezvousConnectionError, found {error!r}"
            assert str(error), "expected an error that says what cannot be reached"

    def test_a_store_that_comes_back_empty_has_no_state_and_knows_no_token_of_before(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            old = written(backend, b"1", None)
            assert peer.get_state() == (b"1", old)
            self.forget(backend)
            assert once_back(backend.get_state) is None, "expected no state in an empty store"
            assert once_back(peer.get_state) is None, "expected no state in an empty store, for any client"
            once_back(lambda: backend.set_state(b"2", old))
            assert peer.get_state() is None, "expected that a token of before writes nothing, found that it did"
            new = written(peer, b"1", None)
            assert new != old, f"expected another token than {old!r}, which stood for a write that was lost"
            _refused(backend, b"3", old)
            assert backend.get_state() == (b"1", new)

    def test_a_foreign_value_is_told_as_that(self, backend: Any) -> None:
        self.spoil(backend)
        error = raised(backend.get_state)
        assert isinstance(error, RendezvousStateError), f"expected RendezvousStateError, found {error!r}"

    def test_closing_twice_is_fine(self, backend: Any) -> None:
        with self.peers(backend, 1) as (peer,):
            peer.get_state()
            close(peer)
            close(peer)
        assert backend.get_state() is None
