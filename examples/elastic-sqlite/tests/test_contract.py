import pytest
from elastic_sqlite import SqliteBackend

from elastic_core.testing import BackendContract


class TestSqliteBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        self.folder = tmp_path / "shared"
        self.folder.mkdir()
        return self.peer(None)

    def peer(self, backend, job="job"):
        return SqliteBackend(self.folder / "rendezvous.db", job)

    def other_job(self, backend):
        return self.peer(backend, "other")

    def lose(self, backend):
        self.folder.rename(self.folder.with_name("gone"))

    def spoil(self, backend):
        (self.folder / "rendezvous.db").write_text("Dear diary, " * 100)
