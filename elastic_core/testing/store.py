"""What every store must do, as tests. A store proves itself in ten lines:

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MyStore(...)
"""

from __future__ import annotations

import unittest
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_SOON = timedelta(milliseconds=200)
_LONG = 60.0
_WOKEN = _LONG / 2  # a wait that only runs out its time and then finds the key was not woken


class StoreContract:
    """See `interfaces.store.Store`; the meaning of each operation is that of torch's TCPStore. For pytest: inherit from
    it and give a fixture `store`, a store that nobody else uses and that is empty. No torch is needed here.

    Attributes:
        errors: what `get` and `wait` may raise when keys do not appear in time.
        extended: whether it has `append`, `multi_get` and `multi_set` as well.
        tells_deletion: whether `delete_key` knows if the key was there.
        add_wakes: whether `add` wakes who waits for its key.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError, TimeoutError)
    extended: ClassVar[bool] = True
    tells_deletion: ClassVar[bool] = True
    add_wakes: ClassVar[bool] = True

    def peer(self, store: Any) -> Any:
        """Another client of the same store, as another process has one. By default the same, for another thread."""
        return store

    def test_values_are_bytes(self, store: Any) -> None:
        store.set("text", "é")
        store.set("bytes", bytes(range(256)))
        store.set("empty", "")
        assert store.get("text") == "é".encode()
        assert store.get("bytes") == bytes(range(256))
        assert store.get("empty") == b""

    def test_set_replaces(self, store: Any) -> None:
        store.set("key", "longer than the next one")
        store.set("key", "new")
        assert store.get("key") == b"new"
        assert self.peer(store).get("key") == b"new"

    def test_a_value_of_a_million_bytes(self, store: Any) -> None:
        value = bytes(1_000_000)
        store.set("large", value)
        assert store.get("large") == value

    def test_keys_are_kept_apart(self, store: Any) -> None:
        keys = ["a", "ab", "a/b", "a/", "/a", "A", "with space", "ключ", "a%", "k" * 500]
        for number, key in enumerate(keys):
            store.set(key, str(number))
        assert [store.get(key) for key in keys] == [str(number).encode() for number in range(len(keys))]

    def test_get_waits_for_the_key(self, store: Any) -> None:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.peer(store).get, "late")
            self._not_yet(waiting)
            store.set("late", "value")
            assert waiting.result(_LONG) == b"value"

    def test_get_gives_up_after_the_timeout_of_the_store(self, store: Any) -> None:
        if not hasattr(store, "set_timeout"):
            raise unittest.SkipTest("its timeout cannot be set")
        store.set_timeout(_SOON)
        assert store.timeout == _SOON
        with unittest.TestCase().assertRaises(self.errors):
            store.get("never")
        store.set_timeout(timedelta(seconds=_LONG))
        store.set("key", "value")
        assert store.get("key") == b"value"

    def test_wait_returns_when_all_keys_are_there(self, store: Any) -> None:
        store.set("one", "1")
        store.wait(["one"])
        store.wait(["one"], timedelta(seconds=_LONG))
        store.wait([])
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.peer(store).wait, ["one", "two", "three"], timedelta(seconds=_LONG))
            store.set("three", "3")
            store.set("twofold", "2")
            self._not_yet(waiting)
            store.add("two", 2) if self.add_wakes else store.set("two", "2")
            assert waiting.result(_WOKEN) is None

    def test_wait_gives_up(self, store: Any) -> None:
        store.set("one", "1")
        with unittest.TestCase().assertRaises(self.errors):
            store.wait(["one", "never"], _SOON)
        assert store.get("one") == b"1"

    def test_whatever_writes_a_key_wakes_who_waits(self, store: Any) -> None:
        writes: dict[str, Callable[[str], object]] = {
            "set": lambda key: store.set(key, "x"),
            "compare_set": lambda key: store.compare_set(key, "", "x"),
        }
        if self.add_wakes:
            writes["add"] = lambda key: store.add(key, 1)
        if self.extended:
            writes["append"] = lambda key: store.append(key, "x")
            writes["multi_set"] = lambda key: store.multi_set([key, "other"], ["x", "y"])
        with ThreadPoolExecutor() as pool:
            for name, write in writes.items():
                waiting = pool.submit(self.peer(store).wait, [name], timedelta(seconds=_LONG))
                self._not_yet(waiting)
                write(name)
                assert waiting.result(_WOKEN) is None

    def test_check(self, store: Any) -> None:
        store.set("a", "1")
        store.set("b", "")
        assert store.check(["a"])
        assert store.check(["a", "b", "a"])
        assert not store.check(["a", "c"])
        assert store.check([])

    def test_counters_are_numbers_in_decimal(self, store: Any) -> None:
        assert [store.add("n", amount) for amount in (3, 0, -5, 1000)] == [3, 3, -2, 998]
        assert store.get("n") == b"998"
        store.set("n", "40")
        assert store.add("n", 2) == 42
        assert self.peer(store).add("n", 1) == 43
        assert store.add("n", 1) == 44
        assert store.add("big", 2**62) == 2**62

    def test_adding_nothing_makes_a_counter(self, store: Any) -> None:
        assert store.add("zero", 0) == 0
        assert store.check(["zero"])
        assert store.get("zero") == b"0"

    def test_a_counter_begins_anew_after_it_was_deleted(self, store: Any) -> None:
        store.add("n", 5)
        store.delete_key("n")
        assert store.add("n", 2) == 2

    def test_additions_at_the_same_time_all_count(self, store: Any) -> None:
        def count(client: Any) -> list[int]:
            return [client.add("n", 1) for _ in range(25)]

        with ThreadPoolExecutor() as pool:
            counting = [pool.submit(count, self.peer(store)) for _ in range(4)]
            told = [number for future in counting for number in future.result(_LONG)]
        assert sorted(told) == list(range(1, 101))

    def test_compare_set(self, store: Any) -> None:
        assert store.compare_set("k", "other", "new") == b"other"
        assert not store.check(["k"])
        assert store.compare_set("k", "", "first") == b"first"
        assert store.compare_set("k", "", "second") == b"first"
        assert store.compare_set("k", "other", "second") == b"first"
        assert store.compare_set("k", b"first", b"\x00\xff") == b"\x00\xff"
        assert store.get("k") == b"\x00\xff"

    def test_compare_set_takes_an_empty_value_for_none(self, store: Any) -> None:
        store.set("k", "")
        assert store.compare_set("k", "", "first") == b"first"
        assert store.get("k") == b"first"

    def test_of_several_who_compare_and_set_one_wins(self, store: Any) -> None:
        with ThreadPoolExecutor() as pool:
            trying = [pool.submit(self.peer(store).compare_set, "k", "", str(number)) for number in range(8)]
            told = {future.result(_LONG) for future in trying}
        assert told == {store.get("k")}

    def test_deletion(self, store: Any) -> None:
        store.set("a", "1")
        assert store.delete_key("a")
        assert not store.check(["a"])
        if self.tells_deletion:
            assert not store.delete_key("a")
        store.set("a", "2")
        assert store.get("a") == b"2"

    def test_num_keys(self, store: Any) -> None:
        before = store.num_keys()
        store.set("a", "1")
        store.add("b", 1)
        store.set("a", "2")
        assert store.num_keys() == before + 2
        store.delete_key("a")
        assert store.num_keys() == before + 1

    def test_append(self, store: Any) -> None:
        self._expect_extended()
        store.append("a", "x")
        self.peer(store).append("a", b"\x00z")
        assert store.get("a") == b"x\x00z"

    def test_appendices_at_the_same_time_are_all_there(self, store: Any) -> None:
        self._expect_extended()
        with ThreadPoolExecutor() as pool:
            writing = [pool.submit(self.peer(store).append, "a", letter * 3) for letter in "abcdef"]
            for future in writing:
                future.result(_LONG)
        value = store.get("a").decode()
        assert sorted(value[start : start + 3] for start in range(0, len(value), 3)) == [c * 3 for c in "abcdef"]

    def test_several_values_at_once(self, store: Any) -> None:
        self._expect_extended()
        store.multi_set(["a", "b", "c"], ["1", b"\xff", ""])
        assert store.multi_get(["c", "a", "b", "a"]) == [b"", b"1", b"\xff", b"1"]
        assert store.multi_get([]) == []
        store.multi_set(["d", "d"], ["1", "2"])
        assert store.get("d") == b"2"

    def test_hundreds_of_values_at_once(self, store: Any) -> None:
        self._expect_extended()
        keys = [f"key{number}" for number in range(300)]
        store.multi_set(keys, keys)
        assert store.multi_get(keys) == [key.encode() for key in keys]
        store.wait(keys, _SOON * 100)
        assert store.check(keys)

    def test_multi_get_waits_for_all(self, store: Any) -> None:
        self._expect_extended()
        store.set("here", "1")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.peer(store).multi_get, ["here", "late"])
            self._not_yet(waiting)
            store.set("late", "2")
            assert waiting.result(_LONG) == [b"1", b"2"]

    def _expect_extended(self) -> None:
        if not self.extended:
            raise unittest.SkipTest("it has no extended operations")

    @staticmethod
    def _not_yet(future: Future[Any]) -> None:
        """It blocks. It is given a moment to do otherwise; a store that is right never fails here, slow or not."""
        done, _ = futures.wait([future], 0.1)
        assert not done, "expected it to wait, found it back"
