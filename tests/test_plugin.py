"""elastic_core.plugin exports all its names and loads only those that are used."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core import plugin


def test_every_exported_name_loads():
    assert len(set(plugin.__all__)) == len(plugin.__all__)
    for name in plugin.__all__:
        assert getattr(plugin, name) is not None


def test_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        plugin.nothing  # noqa: B018


def test_type_checkers_see_the_same_names():
    checking = next(node for node in ast.parse(Path(plugin.__file__).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in checking.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names}
    assert sorted(homes) == sorted({*plugin.__all__} - {"lazy_names"})
    for name, home in homes.items():
        assert getattr(plugin, name) is getattr(importlib.import_module(home), name)


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
