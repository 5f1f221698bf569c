from __future__ import annotations

import os
import sys

import pytest

from elastic_core.support.imports import import_with

VARIABLE = "READ_AT_IMPORT"


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    """Makes `reader` and its submodule `reader.part` importable, and `broken_reader`, whose import fails."""
    package = tmp_path / "reader"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(f"import os\nlevel = os.environ.get({VARIABLE!r})\n")
    (tmp_path / "broken_reader.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    for name in ("reader", "reader.part"):
        sys.modules.pop(name, None)


def imported():
    """The variable during the import of `reader`, and afterward."""
    return import_with("reader.part", VARIABLE, "quiet").level, os.environ.get(VARIABLE)


def test_variable_is_set_only_during_the_import():
    assert imported() == ("quiet", None)


def test_users_value_wins(monkeypatch):
    monkeypatch.setenv(VARIABLE, "loud")
    assert imported() == ("loud", "loud")


def test_imported_module_is_not_imported_again():
    import reader  # noqa: F401

    assert imported() == (None, None)


@pytest.mark.parametrize(
    ("module", "error"), [("broken_reader", ZeroDivisionError), ("no_such_module.part", ModuleNotFoundError)]
)
def test_failed_import_restores_the_environment(module, error):
    with pytest.raises(error):
        import_with(module, VARIABLE, "quiet")
    assert VARIABLE not in os.environ
