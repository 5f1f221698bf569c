"""Builds all distributions into a folder, and shows that others would get the same: `python tools/packages.py dist`.

Each is built twice: an sdist from the checkout and a wheel from that sdist; then both again from the unpacked sdist, in
another folder at another time, which also shows that an sdist needs nothing around it. The bytes must be equal.
`twine check --strict` looks at the result; what is in the wheels is for tests/packaging/test_wheels.py.
Needs build, hatchling and twine. SOURCE_DATE_EPOCH, if it is set, is the time that the archives bear.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import version

LIMIT_S = 120.0


def built(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Build what is in the folder `source` with the tools that are here. Raises RuntimeError with what they said."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *kinds, str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"expected {source} to build, found:\n{done.stdout}")
    return sorted(target.iterdir())


def unpacked(sdist: Path, folder: Path) -> Path:
    """The one folder that is in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def build_twice(source: Path, scratch: Path) -> tuple[list[Path], list[Path]]:
    """The same sdist and wheel, one time after the other."""
    first = built(source, scratch / "first")
    (sdist,) = (path for path in first if path.name.endswith(".tar.gz"))
    return first, built(unpacked(sdist, scratch / "unpacked"), scratch / "second", "--sdist", "--wheel")


def digest(path: Path) -> str:
    """As `sha256sum` tells it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: list[Path], second: list[Path]) -> list[str]:
    """What is in one of them only, or has other bytes in the other."""
    hashes = [{path.name: digest(path) for path in paths} for paths in (first, second)]
    return sorted({name for name, _ in hashes[0].items() ^ hashes[1].items()})


def build_all(target: Path, scratch: Path) -> list[str]:
    """Build into `target`. The names of those that came out otherwise when built again."""
    sources = version.folders()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = list(pool.map(build_twice, sources, [scratch / str(number) for number in range(len(sources))]))
    wrong = [name for first, second in pairs for name in differences(first, second)]
    for path in (path for first, _ in pairs for path in first):
        print(f"{digest(path)}  {path.name}")
        path.rename(target / path.name)
    return wrong


def main(argv: list[str]) -> str | None:
    """What to exit with."""
    if len(argv) != 1:
        return "expected a folder for what is built: python tools/packages.py dist"
    target = Path(argv[0])
    target.mkdir(parents=True, exist_ok=True)
    if left := sorted(target.iterdir()):
        return f"expected an empty folder, found {left[0].name} in {target}; remove it, or name another"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wrong = build_all(target, Path(scratch))
    if wrong:
        return f"expected the same bytes from both builds, found differences in {wrong}"
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(target.iterdir()))]
    return "twine found faults, see above" if subprocess.run(check, timeout=LIMIT_S).returncode else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
