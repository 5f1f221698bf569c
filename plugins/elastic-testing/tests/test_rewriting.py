"""A failing contract shows the compared values, also in a plugin's tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CODE = """
import pytest
from elastic_testing import StoreContract


class TestForgetful(StoreContract):
    @pytest.fixture
    def store(self):
        return Forgetful()


class Forgetful:
    def set(self, key, value):
        pass

    def get(self, key):
        return b"something else"
"""


def test_failing_contract_shows_the_compared_values(tmp_path):
    (tmp_path / "test_forgetful.py").write_text(CODE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "values_are_bytes", "test_forgetful.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "assert b'something else' == " in done.stdout
