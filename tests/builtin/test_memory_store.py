from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.builtin import MemoryStore

SOON = timedelta(milliseconds=20)
LONG = timedelta(seconds=60)


def test_wait_for_a_missing_key_times_out():
    store = MemoryStore(timeout=SOON)
    with pytest.raises(TimeoutError, match=r"the keys \['k'\] were not set within 0\.02 s"):
        store.get("k")
    store.set("a", "")
    with pytest.raises(TimeoutError, match=r"\['k'\]"):
        MemoryStore(timeout=LONG).wait(["k"], SOON)
    with pytest.raises(TimeoutError, match=r"\['k'\]"):
        store.wait(["a", "k"])


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
    """Return the operation's result, or only the fact that it failed, because torch has its own error types."""
    name, *arguments = operation
    if name == "get" and not store.check(arguments):
        return "absent"  # both stores would wait for it
    try:
        return getattr(store, name)(*arguments)
    except ValueError:
        return "no number"


@pytest.mark.torch
@settings(max_examples=200, deadline=None)
@given(st.lists(operations, max_size=20))
def test_store_behaves_like_torchs(story):
    torch_store = pytest.importorskip("torch.distributed").HashStore()
    ours = MemoryStore()
    for operation in story:
        assert outcome(ours, operation) == outcome(torch_store, operation), operation
