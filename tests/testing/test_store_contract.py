"""The core's own store keeps the contract of stores."""

from __future__ import annotations

import pytest

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.testing import StoreContract


class TestMemoryStore(StoreContract):
    extended = False

    @pytest.fixture
    def store(self):
        return MemoryStore()
