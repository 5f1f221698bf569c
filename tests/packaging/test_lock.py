"""The packages for CI are locked by version and hash. Neither they nor the versions that the wheels allow have known
vulnerabilities."""

from __future__ import annotations

import re

import lock
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

pytestmark = pytest.mark.integration

ROOT = lock.ROOT

KNOWN_HOLES = {
    "grpcio": ("CVE-2024-7246", "1.62.3"),
    "h11": ("CVE-2025-43859", "0.16.0"),
    "jinja2": ("CVE-2025-27516", "3.1.6"),
    "protobuf": ("CVE-2025-4565", "4.25.8"),
    "psutil": ("CVE-2019-18874", "5.6.6"),
    "urllib3": ("CVE-2026-21441", "2.6.3"),
}
"""Vulnerabilities of our dependencies and test tools in features that we use, with the first fixed release. `tox run -e
audit` asks the package index for all of them; this table is for machines without access to it."""
ENVIRONMENTS = ("ci", "demo", "docs", "fuzz", "lint", "packages", "py", "run")
LINE = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(environment):
    text = (ROOT / "requirements" / f"{environment}.txt").read_text()
    assert LINE.sub("", text) == "", "there is something else than versions with hashes"
    found: dict[str, list[Version]] = {}
    for name, version, _, _ in LINE.findall(text):
        found.setdefault(name, []).append(Version(version))
    return found


def test_lock_files_match_the_environments():
    assert sorted(lock.environments()) == sorted(ENVIRONMENTS)
    assert {path.stem for path in (ROOT / "requirements").iterdir()} == set(ENVIRONMENTS)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_requirements_are_locked_by_version_and_hash(environment):
    versions = locked(environment)
    for asked in map(Requirement, lock.names(environment)):
        fitting = versions[asked.name.lower()]
        assert all(asked.specifier.contains(version) for version in fitting), asked
    assert "torch" not in versions


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_locked_versions_have_no_known_vulnerability(environment):
    versions = locked(environment)
    for name, (hole, mended) in KNOWN_HOLES.items():
        assert all(version >= Version(mended) for version in versions.get(name, [])), hole


def test_allowed_versions_have_no_known_vulnerability():
    admitted: dict[str, SpecifierSet] = {}
    for need in map(Requirement, lock.names("run")):
        admitted[need.name] = admitted.get(need.name, SpecifierSet()) & need.specifier
    for name, (hole, mended) in KNOWN_HOLES.items():
        if name in admitted:
            assert _lowest(admitted[name]) >= Version(mended), hole


def _lowest(admitted):
    return max(Version(part.version) for part in admitted if part.operator in (">=", "=="))


def test_tox_environments_install_only_their_lock_file():
    text = (ROOT / "tox.ini").read_text()
    for environment in set(ENVIRONMENTS) - {"ci", "run"}:
        section = text.partition(f"\n[testenv:{environment}]\n")[2].partition("\n[")[0]
        assert f"\ndeps = -r {{tox_root}}{{/}}requirements{{/}}{environment}.txt\n" in section
    assert "pip install --quiet --require-hashes -r requirements/ci.txt\n" in (ROOT / ".ci" / "run").read_text()
