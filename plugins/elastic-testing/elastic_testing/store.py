"""The contract for stores, written as tests. docs/extend/plugins.md has an example."""

from __future__ import annotations

import unittest
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from elastic_core.plugin import SystemClock
from elastic_testing.waiting import Background, together

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_SOON = timedelta(milliseconds=200)
_TURNS = 60


class StoreContract:
    """See `interfaces.backend.Store`. The operations have the semantics of torch's TCPStore, but torch is not required.
    To use it with pytest, inherit from this class and define a fixture `store` that returns a new, empty store.

    Attributes:
        errors: errors that `get` and `wait` may raise if keys do not appear in time (RuntimeError, TimeoutError).
        extended: whether the store also has `append`, `multi_get` and `multi_set` (true).
        tells_deletion: whether the result of `delete_key` shows if the key existed (true).
        add_wakes: whether `add` wakes clients that are waiting for its key (true).
        patience: timeout in seconds for waits for keys that will be set (60). If a wait takes more than half of this
            time, the test fails, because the client was evidently not woken.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError, TimeoutError)
    extended: ClassVar[bool] = True
    tells_deletion: ClassVar[bool] = True
    add_wakes: ClassVar[bool] = True
    patience: ClassVar[float] = 60.0

    def peer(self, store: Any) -> Any:
        """Return another client of the same store, as if it belonged to another process. The default is `store` itself,
        which the tests then use from another thread."""
        return store

    def test_values_are_bytes(self, store: Any) -> None:
        store.set("text", "é")
        store.set("bytes", bytes(range(256)))
        store.set("empty", "")
        store.set("blanks", b" padded\r\n\0")
        for client in (store, self.peer(store)):
            assert client.get("text") == "é".encode()
            assert client.get("bytes") == bytes(range(256))
            assert client.get("empty") == b""
            assert client.get("blanks") == b" padded\r\n\0"

    def test_set_replaces_large_value(self, store: Any) -> None:
        store.set("key", bytes(1_000_000))
        assert store.get("key") == bytes(1_000_000)
        store.set("key", "new")
        assert store.get("key") == b"new"
        assert self.peer(store).get("key") == b"new"

    def test_similar_keys_are_distinct(self, store: Any) -> None:
        keys = ["a", "ab", "a/b", "a/", "/a", "A", "with space", "ключ", "a%", "k" * 500]
        for number, key in enumerate(keys):
            store.set(key, str(number))
        assert [store.get(key) for key in keys] == [str(number).encode() for number in range(len(keys))]

    def test_get_waits_for_key(self, store: Any) -> None:
        waiting = self._begun(partial(self.peer(store).get, "late"))
        self._not_yet(waiting)
        store.set("late", "value")
        assert waiting.result() == b"value"

    def test_store_timeout_is_the_default(self, store: Any) -> None:
        if not hasattr(store, "set_timeout"):
            raise unittest.SkipTest("the store has no set_timeout")
        store.set_timeout(_SOON)
        assert store.timeout == _SOON
        self._gives_up(partial(store.get, "never"))
        self._gives_up(partial(store.wait, ["never"]))
        if self.extended:
            self._gives_up(partial(store.multi_get, ["never"]))
        store.set_timeout(timedelta(seconds=self.patience))
        store.set("key", "value")
        assert store.get("key") == b"value"

    def test_wait_returns_when_all_keys_exist(self, store: Any) -> None:
        store.set("one", "1")
        store.wait(["one"])
        store.wait(["one"], timedelta(seconds=self.patience))
        store.wait([])
        waiting = self._waiting(store, ["one", "two", "three", "two"])
        store.set("three", "3")
        store.set("twofold", "2")
        self._not_yet(waiting)
        store.add("two", 2) if self.add_wakes else store.set("two", "2")
        waiting.result()

    def test_wait_times_out(self, store: Any) -> None:
        store.set("one", "1")
        self._gives_up(partial(store.wait, ["one", "never"], _SOON))
        assert store.get("one") == b"1"

    def test_deletion_does_not_affect_wait(self, store: Any) -> None:
        store.set("old", "1")
        waiting = self._waiting(store, ["new"])
        self._not_yet(waiting)
        store.delete_key("new")
        store.delete_key("old")
        self._not_yet(waiting)
        store.set("new", "2")
        waiting.result()

    def test_waiting_client_is_woken_without_polling(self, store: Any) -> None:
        """Two clients take turns many times. A store that polls every half second would exceed the time limit."""
        peer = self.peer(store)

        def answer() -> None:
            for turn in range(_TURNS):
                peer.wait([f"ask {turn}"], timedelta(seconds=self.patience))
                peer.set(f"answer {turn}", "x")

        def ask() -> None:
            for turn in range(_TURNS):
                store.set(f"ask {turn}", "x")
                store.wait([f"answer {turn}"], timedelta(seconds=self.patience))

        for call in (self._begun(answer), self._begun(ask)):
            call.result()

    def test_every_kind_of_write_wakes_waiting_client(self, store: Any) -> None:
        writes: dict[str, Callable[[str], object]] = {
            "set": lambda key: store.set(key, "x"),
            "compare_set": lambda key: store.compare_set(key, "", "x"),
        }
        if self.add_wakes:
            writes["add"] = lambda key: store.add(key, 1)
        if self.extended:
            writes["append"] = lambda key: store.append(key, "x")
            writes["multi_set"] = lambda key: store.multi_set([key, "other"], ["x", "y"])
        for name, write in writes.items():
            waiting = self._waiting(store, [name])
            self._not_yet(waiting)
            write(name)
            waiting.result()

    def test_check_reports_existing_keys(self, store: Any) -> None:
        store.set("a", "1")
        store.set("b", "")
        assert store.check(["a"])
        assert store.check(["a", "b", "a"])
        assert not store.check(["a", "c"])
        assert store.check([])

    def test_counters_are_decimal_text(self, store: Any) -> None:
        assert [store.add("n", amount) for amount in (3, 0, -5, 1000)] == [3, 3, -2, 998]
        assert store.get("n") == b"998"
        store.set("n", "40")
        assert store.add("n", 2) == 42
        assert self.peer(store).add("n", 1) == 43
        assert store.add("n", 1) == 44
        assert store.add("big", 2**62) == 2**62
        assert store.add("zero", 0) == 0
        assert store.check(["zero"])
        assert store.get("zero") == b"0"
        store.delete_key("n")
        assert store.add("n", 2) == 2

    def test_add_sees_other_clients_writes(self, store: Any) -> None:
        peer = self.peer(store)
        writes: list[Callable[[], object]] = [
            lambda: peer.set("n", "10"),
            lambda: peer.compare_set("n", "11", "20"),
            lambda: (peer.delete_key("n"), peer.add("n", 30)),
        ]
        if self.extended:
            writes.append(lambda: peer.append("n", "0"))
        sums = []
        for write in writes:
            write()
            peer.check(["n"])  # wait for a reply, because torch's TCPStore does not confirm `set` and `append`
            sums.append(store.add("n", 1))
        assert sums == [11, 21, 31, 311][: len(writes)]

    def test_add_rejects_non_numeric_value(self, store: Any) -> None:
        peer = self.peer(store)
        store.set("n", "text")
        with unittest.TestCase().assertRaises((*self.errors, ValueError)):
            store.add("n", 1)
        assert peer.get("n") == b"text"

    def test_concurrent_additions_are_all_counted(self, store: Any) -> None:
        def count(client: Any) -> list[int]:
            return [client.add("n", 1) for _ in range(25)]

        sums = together([partial(count, self.peer(store)) for _ in range(4)])
        assert sorted(number for numbers in sums for number in numbers) == list(range(1, 101))

    def test_compare_set_writes_if_value_matches(self, store: Any) -> None:
        assert store.compare_set("k", "other", "new") == b"other"
        assert not store.check(["k"])
        assert store.compare_set("k", "", "first") == b"first"
        assert store.compare_set("k", "", "second") == b"first"
        assert store.compare_set("k", "other", "second") == b"first"
        assert store.compare_set("k", b"first", b"\x00\xff") == b"\x00\xff"
        assert store.get("k") == b"\x00\xff"
        assert store.compare_set("k", b"\x00\xfe", "last") == b"\x00\xff"
        assert store.compare_set("k", b"\x00\xff", "last") == b"last"
        store.set("k", "")  # an empty value is treated as absent
        assert store.compare_set("k", "", "again") == b"again"
        assert store.get("k") == b"again"

    def test_one_of_concurrent_compare_sets_wins(self, store: Any) -> None:
        calls = [partial(self.peer(store).compare_set, "k", "", str(number)) for number in range(8)]
        assert set(together(calls)) == {store.get("k")}

    def test_compare_set_loses_no_increment(self, store: Any) -> None:
        """Each client writes its name with the number, to distinguish its own writes from other clients' writes."""

        def count(client: Any, name: str) -> None:
            for _ in range(10):
                found, desired = client.get("n"), b""
                while found != desired:
                    number = int(found.partition(b" ")[0]) + 1
                    expected, desired = found, f"{number} {name}".encode()
                    found = client.compare_set("n", expected, desired)

        store.set("n", "0")
        together([partial(count, self.peer(store), name) for name in "abcd"])
        assert store.get("n").startswith(b"40 ")

    def test_delete_key_removes_key(self, store: Any) -> None:
        store.set("a", "1")
        assert store.delete_key("a")
        assert not store.check(["a"])
        if self.tells_deletion:
            assert not store.delete_key("a")
        store.set("a", "2")
        assert store.get("a") == b"2"

    def test_num_keys_counts_keys(self, store: Any) -> None:
        before = store.num_keys()
        store.set("a", "1")
        store.add("b", 1)
        store.set("a", "2")
        assert store.num_keys() == before + 2
        store.delete_key("a")
        assert store.num_keys() == before + 1

    def test_append_extends_value(self, store: Any) -> None:
        self._expect_extended()
        store.append("a", "x")
        self.peer(store).append("a", b"\x00\xff")
        assert store.get("a") == b"x\x00\xff"

    def test_concurrent_appends_are_all_kept(self, store: Any) -> None:
        self._expect_extended()
        together([partial(self.peer(store).append, "a", letter * 3) for letter in "abcdef"])
        value = store.get("a").decode()
        assert sorted(value[start : start + 3] for start in range(0, len(value), 3)) == [c * 3 for c in "abcdef"]

    def test_multi_set_and_multi_get(self, store: Any) -> None:
        self._expect_extended()
        store.multi_set(["a", "b", "c"], ["1", b"\xff", ""])
        assert store.multi_get(["c", "a", "b", "a"]) == [b"", b"1", b"\xff", b"1"]
        assert store.multi_get([]) == []
        store.multi_set(["d", "d"], ["1", "2"])
        assert store.get("d") == b"2"

    def test_multi_get_of_hundreds_of_values(self, store: Any) -> None:
        self._expect_extended()
        keys = [f"key{number}" for number in range(300)]
        store.multi_set(keys, keys)
        assert store.multi_get(keys) == [key.encode() for key in keys]
        store.wait(keys, _SOON * 100)
        assert store.check(keys)

    def test_multi_get_waits_for_all_keys(self, store: Any) -> None:
        self._expect_extended()
        store.set("here", "1")
        waiting = self._begun(partial(self.peer(store).multi_get, ["here", "late"]))
        self._not_yet(waiting)
        store.set("late", "2")
        assert waiting.result() == [b"1", b"2"]

    def _expect_extended(self) -> None:
        if not self.extended:
            raise unittest.SkipTest("the store has no extended operations")

    def _begun(self, call: Callable[[], T]) -> Background[T]:
        return Background(call, self.patience / 2)

    def _waiting(self, store: Any, keys: list[str]) -> Background[None]:
        return self._begun(partial(self.peer(store).wait, keys, timedelta(seconds=self.patience)))

    @staticmethod
    def _not_yet(call: Background[Any]) -> None:
        """Check that the call blocks. A correct store never fails this check, even if it is slow."""
        assert not call.over(0.1), "the call returned instead of waiting"

    def _gives_up(self, call: Callable[[], object]) -> None:
        """Check that the call raises an error at its timeout, and not before."""
        clock = SystemClock()
        begun = clock.now()
        with unittest.TestCase().assertRaises(self.errors):
            self._begun(call).result()
        assert clock.now() - begun > 0.9 * _SOON.total_seconds(), "the call gave up before its timeout"
