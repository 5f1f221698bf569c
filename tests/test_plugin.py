"""elastic_core.plugin and elastic_core.diagnostics export all their names and load only those that are used."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core import diagnostics, plugin

both = pytest.mark.parametrize("module", [plugin, diagnostics])


@both
def test_every_exported_name_loads(module):
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@both
def test_unknown_name_is_an_error(module):
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018


@both
def test_type_checkers_see_the_same_names(module):
    checking = next(node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in checking.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names}
    assert sorted(homes) == sorted({*module.__all__} - {"lazy_names"})
    for name, home in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


LOAD = """
import json, os, sys
from elastic_core.hooks.manager import PluginManager
manager = PluginManager.load(os.environ)
print(json.dumps([[it.target for it in manager.plugins], sorted(sys.modules)]))
"""


@pytest.mark.integration
def test_loading_all_plugins_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, timeout=100)
    plugins, modules = json.loads(done.stdout)
    assert plugins
    heavy = ("torch", "grpc", "etcd3", "elastic_core.rendezvous", "elastic_core.workers", "elastic_core.agent")
    assert [name for name in modules if name.startswith(heavy)] == []
