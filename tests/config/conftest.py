"""A folder with a script, and a reader of its configuration."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import pytest

from elastic_core.config import Reading, Sources, read
from elastic_core.errors import ConfigurationError
from elastic_core.hooks.manager import PluginManager


@functools.cache
def installed() -> PluginManager:
    return PluginManager.load({})


class ConfigReader:
    """Reads configurations in its own folder, without the real environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text("")

    def read(self, line="train.py", environ=None, **more) -> Reading:
        argv = line.split() if isinstance(line, str) else line
        more.setdefault("backend_named", installed().backend_named)
        return read(Sources(argv, environ or {}, self.folder), new_run_id=lambda: "made-up", **more)

    def problems(self, line="train.py", environ=None, **more) -> dict[str, str]:
        with pytest.raises(ConfigurationError) as caught:
            self.read(line, environ, **more)
        return {problem.origin: problem.message for problem in caught.value.problems}

    def write(self, text: str, name: str = "elastic.toml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def config_reader(tmp_path):
    # An empty elastic.toml one level up keeps the search from leaving the test's folder.
    (tmp_path / "elastic.toml").write_text("")
    folder = tmp_path / "job"
    folder.mkdir()
    return ConfigReader(folder)


@pytest.fixture
def torchrun(tmp_path):
    from beside_torchrun import Torchrun

    logging.disable(logging.CRITICAL)
    yield Torchrun(tmp_path)
    logging.disable(logging.NOTSET)


@pytest.fixture
def elastic(tmp_path):
    from beside_torchrun import Elastic

    return Elastic(tmp_path)
