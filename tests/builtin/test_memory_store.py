from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.interfaces.store import Store

SOON = timedelta(milliseconds=20)
LONG = timedelta(seconds=60)


def test_values_are_bytes():
    store: Store = MemoryStore()
    store.set("text", "é")
    store.set("bytes", b"\x00")
    assert (store.get("text"), store.get("bytes")) == ("é".encode(), b"\x00")


def test_counters():
    store = MemoryStore()
    assert [store.add("n", amount) for amount in (3, 0, -5)] == [3, 3, -2]
    assert store.get("n") == b"-2"
    store.set("n", "40")
    assert store.add("n", 2) == 42


def test_a_counter_must_hold_a_number():
    store = MemoryStore()
    store.set("n", "many")
    with pytest.raises(ValueError, match="many"):
        store.add("n", 1)


def test_compare_set():
    store = MemoryStore()
    assert store.compare_set("k", "other", "new") == b"other"  # as torch's stores answer for an absent key
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "", "second") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"


def test_keys():
    store = MemoryStore()
    store.set("a", "1")
    store.set("b", "")
    assert (store.check(["a", "b"]), store.check(["a", "c"]), store.check([]), store.num_keys()) == (
        True,
        False,
        True,
        2,
    )
    assert (store.delete_key("b"), store.delete_key("b"), store.num_keys()) == (True, False, 1)


def test_waiting_for_a_key_that_nobody_sets():
    store = MemoryStore(timeout=SOON)
    with pytest.raises(TimeoutError, match=r"expected the keys \['k'\] to be set within 0\.02 s; nobody has set them"):
        store.get("k")
    store.set("a", "")
    with pytest.raises(TimeoutError, match=r"\['k'\]"):
        MemoryStore(timeout=LONG).wait(["k"], SOON)
    with pytest.raises(TimeoutError, match=r"\['k'\]"):
        store.wait(["a", "k"])


def test_get_and_wait_return_when_another_thread_sets_the_keys():
    store = MemoryStore(timeout=LONG)
    found = []

    def wait():
        store.wait(["a", "b"], LONG)
        found.append(store.get("c"))

    waiter = threading.Thread(target=wait)
    waiter.start()
    for key in "abc":
        store.set(key, key)
    waiter.join(60)
    assert found == [b"c"]


def test_threads_count_without_losing_anything():
    store = MemoryStore()

    def count():
        for _ in range(500):
            store.add("n", 1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("n") == b"4000"


def test_of_many_threads_that_compare_and_set_one_wins():
    store = MemoryStore()
    answers = []
    threads = [
        threading.Thread(
            target=lambda name: answers.append((name, store.compare_set("leader", "", name))), args=[f"t{n}"]
        )
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = store.get("leader")
    assert {answer for _, answer in answers} == {winner}


keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["", "0", "7", "-3", "x"])
operations = st.one_of(
    st.tuples(st.just("set"), keys, values),
    st.tuples(st.just("add"), keys, st.integers(-5, 5)),
    st.tuples(st.just("compare_set"), keys, values, values),
    st.tuples(st.just("check"), st.lists(keys, max_size=3)),
    st.tuples(st.just("delete_key"), keys),
    st.tuples(st.just("num_keys")),
    st.tuples(st.just("get"), keys),
)


def outcome(store, operation):
    """What an operation returns; of an error only that there was one, for torch has types of its own."""
    name, *arguments = operation
    if name == "get" and not store.check(arguments):
        return "absent"  # both would wait for it
    try:
        return getattr(store, name)(*arguments)
    except ValueError:
        return "no number"


@pytest.mark.torch
@settings(max_examples=200, deadline=None)
@given(st.lists(operations, max_size=20))
def test_it_does_what_torchs_stores_do(story):
    torch_store = pytest.importorskip("torch.distributed").HashStore()
    ours = MemoryStore()
    for operation in story:
        assert outcome(ours, operation) == outcome(torch_store, operation), operation
