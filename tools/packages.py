"""Build all distributions into a folder, and check that the builds are reproducible: `python tools/packages.py dist`.

Each distribution is built twice: first an sdist from the checkout and a wheel from that sdist, then both again from the
unpacked sdist, in another folder at another time. The bytes must be equal, and the second build shows that an sdist is
self-contained. `twine check --strict` checks the result; tests/packaging/test_wheels.py checks the wheels' contents.
Needs build, hatchling and twine. SOURCE_DATE_EPOCH, if set, is the timestamp in the archives.
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
    """Build the folder `source` with the installed tools. Raises RuntimeError with their output."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *kinds, str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"building {source} failed:\n{done.stdout}")
    return sorted(target.iterdir())


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, and return the only folder in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def build_twice(source: Path, scratch: Path) -> tuple[list[Path], list[Path]]:
    """Build sdist and wheel twice. Returns the files of both builds."""
    first = built(source, scratch / "first")
    (sdist,) = (path for path in first if path.name.endswith(".tar.gz"))
    return first, built(unpacked(sdist, scratch / "unpacked"), scratch / "second", "--sdist", "--wheel")


def digest(path: Path) -> str:
    """The digest that `sha256sum` prints."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: list[Path], second: list[Path]) -> list[str]:
    """The names of files that only one build has, or whose bytes differ."""
    hashes = [{path.name: digest(path) for path in paths} for paths in (first, second)]
    return sorted({name for name, _ in hashes[0].items() ^ hashes[1].items()})


def build_all(target: Path, scratch: Path) -> list[str]:
    """Build into `target`. Returns the names of files that differ between the two builds."""
    sources = version.folders()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = list(pool.map(build_twice, sources, [scratch / str(number) for number in range(len(sources))]))
    wrong = [name for first, second in pairs for name in differences(first, second)]
    for path in (path for first, _ in pairs for path in first):
        print(f"{digest(path)}  {path.name}")
        path.rename(target / path.name)
    return wrong


def main(argv: list[str]) -> str | None:
    """Build and check. Returns the error, if any, for sys.exit."""
    if len(argv) != 1:
        return "usage: python tools/packages.py FOLDER"
    target = Path(argv[0])
    target.mkdir(parents=True, exist_ok=True)
    if left := sorted(target.iterdir()):
        return f"{target} is not empty: remove {left[0].name}, or choose another folder"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wrong = build_all(target, Path(scratch))
    if wrong:
        return f"the two builds differ in {wrong}"
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(target.iterdir()))]
    return "twine reported errors, see above" if subprocess.run(check, timeout=LIMIT_S).returncode else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
