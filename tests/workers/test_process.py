"""The process-wide settings that running workers need: visible child exits and enough open files."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.workers.process import cannot_start, make_exits_visible, more_files, remedy


@pytest.fixture
def ignored_ends():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_make_exits_visible_fails_in_a_thread(ignored_ends):
    raised = []

    def run():
        try:
            make_exits_visible()
        except ConfigurationError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "SIGCHLD" in raised[0]


@pytest.mark.integration
def test_forked_worker_restores_its_file_limit_after_its_own_job():
    """Although it was forked while the agent's limit was raised."""
    with more_files():
        child = os.fork()
        if child == 0:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            low = (min(limit[0], 512), limit[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, low)
            with more_files() as before:
                pass
            os._exit(0 if before == resource.getrlimit(resource.RLIMIT_NOFILE) == low else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_overlapping_jobs_share_the_raised_file_limit():
    """As with two launches in threads: the first to end must not take away the other one's files."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        low = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
            assert first.enter_context(more_files()) == second.enter_context(more_files()) == low
            high = resource.getrlimit(resource.RLIMIT_NOFILE)
            first.close()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == high > low
            second.close()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Remedies for errors caused by resource limits


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u"), (errno.ENFILE, "fs.file-max")]
)
def test_resource_limit_error_includes_a_remedy(number, advice):
    error = OSError(number, os.strerror(number))
    assert advice in remedy(error)
    assert advice in str(cannot_start(error, 8))
    assert "8 workers" in str(cannot_start(error, 8))


def test_other_errors_have_no_remedy():
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    assert remedy(error) is None
    assert "Input/output error" in str(cannot_start(error, 1))
    assert "above" not in str(cannot_start(error, 1))


def test_message_includes_file_name_or_error_text():
    assert "No such file or directory: python;" in str(cannot_start(FileNotFoundError(2, os.strerror(2), "python"), 1))
    assert "workers: in words;" in str(cannot_start(OSError("in words"), 1))
