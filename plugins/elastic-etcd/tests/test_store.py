"""EtcdStore over a real etcd."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import pytest
from elastic_testing import StoreContract, installed_store

pytestmark = pytest.mark.torch
NOTE = (Path(__file__).parents[3] / "design" / "etcd.md").read_text()
TRACE = NOTE.split("\n## From `EtcdStore.set` to the wire\n")[1]


@pytest.fixture
def stores(etcd, prefix):
    """Makes clients of one store."""
    with contextlib.ExitStack() as stack:

        def make():
            made = installed_store("etcd", endpoint=etcd.endpoint, prefix=prefix.decode(), timeout=20)
            stack.callback(made.close)
            return made

        yield make


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def store(self, stores):
        self.stores = stores
        return stores()

    def peer(self, store):
        return self.stores()


class TestUnderPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, stores):
        from torch.distributed import PrefixStore

        return PrefixStore("outer", PrefixStore("inner", stores()))


def test_close_of_store_made_by_name_closes_its_client(stores):
    from torch.distributed import DistStoreError

    store = stores()
    store.set("key", "value")
    store.close()
    with pytest.raises(DistStoreError, match="is closed"):
        store.set("key", "another")


def test_write_passes_the_files_that_the_design_note_lists(stores):
    store, passed = stores(), []
    store.set("key", "before")  # connects

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and {"elastic_etcd", "elastic_core"} & {*path.parts}:
            passed.append(f"{path.parent.name}/{path.name}")

    sys.setprofile(note)
    try:
        store.set("key", "value")
    finally:
        sys.setprofile(None)
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", TRACE)
    assert set(passed) == set(named)
    assert len(named) <= 8
