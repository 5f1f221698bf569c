"""All distributions have the same version, which one command sets."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import version
from blocks import Shell, block_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path):
    """Copies of every distribution's pyproject.toml in another folder."""
    for folder in version.folders():
        there = tmp_path / folder.relative_to(ROOT)
        there.mkdir(parents=True, exist_ok=True)
        (there / "pyproject.toml").write_text((folder / "pyproject.toml").read_text())
    return tmp_path


def texts(root):
    return {folder.relative_to(root): (folder / "pyproject.toml").read_text() for folder in version.folders(root)}


def test_all_versions_agree():
    assert version.problem() is None


def test_changelog_begins_with_this_version():
    first = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2]
    assert first.split()[0] == version.versions()["core"]


def test_setting_the_version_changes_nothing_else(copy):
    before, old = texts(copy), version.versions()["core"]
    version.set_version("7.8.9rc1", copy)
    assert set(version.versions(copy).values()) == {"7.8.9rc1"}
    assert version.problem(copy) is None
    assert {name: text.replace("7.8.9rc1", old) for name, text in texts(copy).items()} == before
    assert '"elastic-etcd[store]~=7.8.9rc1"' in texts(copy)[Path("plugins/elastic-etcd-legacy")]


def test_documented_command_sets_the_version(copy):
    version.set_version("7.8.9rc1", copy)
    (copy / "tools").mkdir()
    shutil.copy(version.__file__, copy / "tools")
    command = block_of("docs/project/releasing.md", "tools/version.py")
    said = Shell(copy).run(command)
    assert set(version.versions(copy).values()) == {said.strip()} == set(re.findall(r"\d+\.\d+\.\d+", command))
    assert version.problem(copy) is None


@pytest.mark.parametrize("old", ['version = "{}"', "elastic-core~={}"])
def test_outdated_version_is_reported(copy, old):
    path = copy / "plugins" / "elastic-c10d" / "pyproject.toml"
    text = path.read_text()
    path.write_text(text.replace(old.format(version.versions()["core"]), old.format("0.0.9")))
    assert path.read_text() != text
    assert f"run: python tools/version.py {version.versions()['core']}" in version.problem(copy)


def test_invalid_version_changes_nothing(copy):
    before = texts(copy)
    with pytest.raises(ValueError, match="expected a version such as"):
        version.set_version("next", copy)
    assert texts(copy) == before
