"""The agent's side of the guardian."""

from __future__ import annotations

import os
import signal

import pytest
from elastic_testing import FakeClock

from elastic_core.workers.guardian import Guardian
from elastic_core.workers.sessions import start_of

pytestmark = pytest.mark.integration

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def guardian():
    made = Guardian()
    yield made
    made.close()


def test_close_kills_watched_processes_and_is_idempotent(guardian, spawn):
    watched, forgotten = spawn(SLEEP), spawn(SLEEP)
    for process in (watched, forgotten):
        guardian.watch(process.pid, start_of(process.pid))
    guardian.forget(forgotten.pid)
    guardian.close()
    guardian.close()
    assert watched.wait() == -signal.SIGKILL
    assert forgotten.poll() is None


def test_orders_after_close_are_ignored(guardian):
    guardian.close()
    guardian.watch(1, 1)


def test_replacement_guardian_gets_all_current_orders(guardian, until, running, spawn, tmp_path, capfd):
    watched, forgotten, late = spawn(SLEEP), spawn(SLEEP), spawn(SLEEP)
    for process in (watched, forgotten):
        guardian.watch(process.pid, start_of(process.pid))
    folder = tmp_path / "scratch"
    folder.mkdir()
    guardian.scratch(str(folder))
    first = guardian.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not running(first))
    guardian.forget(forgotten.pid)
    guardian.watch(late.pid, start_of(late.pid))
    assert guardian.pid != first
    guardian.close()
    assert (watched.wait(), late.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert forgotten.poll() is None
    assert not folder.exists()
    assert capfd.readouterr().err.count("guardian lost") == 1


def test_guardian_replacements_without_orders_are_limited(until, running):
    guardian = Guardian(clock=FakeClock())
    try:
        for replaced in (True, True, True, False):
            lost = guardian.pid
            os.kill(lost, signal.SIGKILL)
            until(lambda lost=lost: not running(lost))
            guardian.look()
            assert (guardian.pid != lost) is replaced
        assert guardian.sentinels() == []
        guardian.forget(1)
        assert guardian.pid != lost
        assert len(guardian.sentinels()) == 1
    finally:
        guardian.close()


def environment_of(pid):
    with open(f"/proc/{pid}/environ") as file:
        return file.read()


def test_guardian_inherits_only_loader_variables(until, monkeypatch):
    given = {"LD_LIBRARY_PATH": "/usr/local/lib", "SECRET": "x", "HOME": "/home/me", "OLD_LD_": "y"}
    monkeypatch.setattr(os, "environ", given)
    guardian = Guardian()
    try:
        until(lambda: environment_of(guardian.pid))  # empty during exec
        assert environment_of(guardian.pid) == "LD_LIBRARY_PATH=/usr/local/lib\0"
    finally:
        guardian.close()


@pytest.mark.parametrize("name", ["with a space", "b\udcffytes"])
def test_scratch_folders_of_any_name_are_removed(guardian, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    guardian.scratch(str(folder))
    guardian.close()
    assert not folder.exists()


def test_scratch_folder_with_newline_is_kept(guardian, tmp_path):
    folder = tmp_path / "one\ntwo"
    folder.mkdir()
    (tmp_path / "one").mkdir()
    guardian.scratch(str(folder))
    guardian.close()
    assert folder.exists()
    assert (tmp_path / "one").exists()


def test_symlink_and_its_target_are_kept(guardian, tmp_path):
    folder = tmp_path / "folder"
    (folder / "work").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "link").symlink_to(folder)
    guardian.scratch(str(tmp_path / "link"))
    guardian.scratch(str(tmp_path / "scratch"))
    guardian.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]
    assert (folder / "work").exists()


def test_relative_scratch_folder_is_kept(guardian, tmp_path):
    """The guardian's working directory is the root, so a relative path would name another folder."""
    guardian.scratch(str(tmp_path.relative_to("/")))
    guardian.close()
    assert tmp_path.exists()
