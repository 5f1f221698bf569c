"""The core's own store passes StoreContract."""

from __future__ import annotations

import pytest
from elastic_testing import StoreContract, installed_store


class TestMemoryStore(StoreContract):
    extended = False

    @pytest.fixture
    def store(self):
        return installed_store("memory")
