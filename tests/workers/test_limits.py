"""Remedies for errors caused by resource limits."""

from __future__ import annotations

import errno
import os

import pytest

from elastic_core.workers.process import cannot_start, remedy


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
