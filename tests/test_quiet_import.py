from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elastic_core.support.imports import import_with

pytestmark = pytest.mark.integration

SAYS = """
import os
level = os.environ.get("READ_AT_IMPORT")
"""


@pytest.fixture
def says(tmp_path):
    """Function that runs code in a separate process, which can import `reader` and its submodule `reader.part`. Returns
    the words of its output."""
    package = tmp_path / "reader"
    package.mkdir()
    (package / "__init__.py").write_text(SAYS)
    (package / "part.py").write_text("from reader import level")
    (tmp_path / "broken_reader.py").write_text("1 / 0")

    def run(code, **environment):
        code = f"import os, sys; from elastic_core.support.imports import import_with\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


ASK = 'print(import_with("reader.part", "READ_AT_IMPORT", "quiet").level, os.environ.get("READ_AT_IMPORT"))'


def test_variable_is_set_only_during_the_import(says):
    assert says(ASK) == ["quiet", "None"]


def test_users_value_wins(says):
    assert says(ASK, READ_AT_IMPORT="loud") == ["loud", "loud"]


def test_imported_module_is_not_imported_again(says):
    assert says(f"import reader\n{ASK}") == ["None", "None"]


def test_failed_import_restores_the_environment(says):
    code = (
        "try:\n    import_with('broken_reader', 'READ_AT_IMPORT', 'quiet')\n"
        "except ZeroDivisionError:\n    print(os.environ.get('READ_AT_IMPORT'))"
    )
    assert says(code) == ["None"]


def test_missing_module_raises_and_restores():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_with("no_such_module.part", "READ_AT_IMPORT", "quiet")
    assert "READ_AT_IMPORT" not in os.environ
