"""Each wheel has the package, its types, its license and its entry points, and nothing else."""

from __future__ import annotations

import configparser
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import version

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
VERSION = version.versions()["core"]
ENTRY_POINTS = {
    "elastic-core": {
        ("console_scripts", "elastic", "elastic_core.cli:entry_point"),
        ("console_scripts", "elastic-torchrun", "elastic_core.compat.run:torchrun"),
        ("elastic", "builtin", "elastic_core.builtin"),
    },
    "elastic-c10d": {("elastic", "c10d", "elastic_c10d.plugin")},
    "elastic-etcd": {
        ("elastic", "etcd", "elastic_etcd.plugin"),
        ("torchrun.handlers", "etcd-v3", "elastic_etcd.torchrun:handler"),
    },
    "elastic-etcd-legacy": {("elastic", "etcd-legacy", "elastic_etcd_legacy.plugin")},
    "elastic-file-timer": {("elastic", "file", "elastic_file_timer.plugin")},
    "elastic-http-health": {("elastic", "http", "elastic_http_health.plugin")},
    "elastic-notices": {("elastic", "notices", "elastic_notices.plugin")},
    "elastic-doctor": {("elastic", "doctor", "elastic_doctor.plugin")},
    "elastic-otel": {("elastic", "otel", "elastic_otel.plugin:recovery_spans")},
    "elastic-testing": set(),
    "elastic-warm": {("elastic", "warm", "elastic_warm.plugin")},
}
NAMES = sorted(ENTRY_POINTS)


class Wheel:
    def __init__(self, path, name):
        self.package = name.replace("-", "_")
        self._archive = zipfile.ZipFile(path)
        self._info = f"{self.package}-{VERSION}.dist-info"
        self.files = set(self._archive.namelist())
        self.code = {name for name in self.files if name.startswith(f"{self.package}/")}
        self.metadata = HeaderParser().parsestr(self.info("METADATA"))

    def info(self, name):
        """The text of a metadata file."""
        return self._archive.read(f"{self._info}/{name}").decode()

    def entry_points(self):
        parser = configparser.ConfigParser(delimiters=["="])
        if f"{self._info}/entry_points.txt" in self.files:
            parser.read_string(self.info("entry_points.txt"))
        return {(group, name, target) for group in parser.sections() for name, target in parser[group].items()}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def wheel(wheels, name):
    return Wheel(wheels[name], name)


def test_every_distribution_has_a_row(wheels):
    assert sorted(wheels) == NAMES


def test_wheel_fits_every_platform_and_has_this_version(wheels, wheel, name):
    assert wheels[name].name == f"{wheel.package}-{VERSION}-py3-none-any.whl"
    assert (wheel.metadata["Name"], wheel.metadata["Version"]) == (name, VERSION)
    assert wheel.metadata["Requires-Python"] == ">=3.10"


def test_wheel_has_package_and_types_but_no_tests(wheel, checkout, name):
    source = checkout[name]
    there = [path for path in (source / wheel.package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert wheel.code == {str(path.relative_to(source)) for path in there}
    assert f"{wheel.package}/py.typed" in wheel.code
    assert {file.split("/")[0] for file in wheel.files - wheel.code} == {f"{wheel.package}-{VERSION}.dist-info"}
    assert not [file for file in wheel.files if Path(file).name.startswith(("test_", "conftest"))]


def test_wheel_has_its_license(wheel):
    assert wheel.metadata["License-Expression"] == "BSD-3-Clause"
    assert wheel.info("licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_entry_points_exist_in_the_wheel(wheel, name):
    assert wheel.entry_points() == ENTRY_POINTS[name]
    for _, _, target in ENTRY_POINTS[name]:
        assert f"{target.partition(':')[0].replace('.', '/')}.py" in wheel.files
