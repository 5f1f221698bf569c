from pathlib import Path

import pytest
from elastic_sqlite import SqliteStore
from elastic_testing import BackendContract, StoreContract, installed_backend


class TestSqliteStore(StoreContract):
    extended = False

    @pytest.fixture
    def store(self, tmp_path):
        self.path = str(tmp_path / "store.db")
        return SqliteStore(self.path)

    def peer(self, store):
        return SqliteStore(self.path)


class TestSqliteBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        self.path = str(tmp_path / "store.db")
        return self.peer(None)

    def peer(self, backend, job="job"):
        return installed_backend("sqlite", self.path, job)

    def other_job(self, backend):
        return self.peer(backend, "other")

    def lose(self, backend):
        Path(self.path).write_text("Dear diary, " * 100)

    def spoil(self, backend):
        store, epoch = SqliteStore(self.path), "0123456789abcdef"
        store.set("elastic/job/id", epoch)
        store.set(f"elastic/job/{epoch}/s/1", "words")
