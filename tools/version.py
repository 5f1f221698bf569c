"""One version for all distributions: `python tools/version.py` tells it, `python tools/version.py 0.2.0` sets it.

Each pyproject.toml says it by itself, so that each folder, and the sdist made of it, can be built alone. This file is
what keeps them equal: setting it writes the version of every distribution, and what each needs of the others, at once;
telling it fails if they differ. A plugin needs the core of its own minor release, and none that is older than itself.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^version = "(.*)"$', re.M)
NEED = re.compile(r'"(elastic-[a-z\d-]+(?:\[\w+\])?)([^"\w\[-][^"]*)?"')
FORM = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def folders(root: Path = ROOT) -> list[Path]:
    """Of all distributions, the core first."""
    return [root, *(path.parent for path in sorted(root.glob("plugins/*/pyproject.toml")))]


def versions(root: Path = ROOT) -> dict[str, str]:
    """What each folder says, by its name; `core` for the root."""
    texts = {folder: (folder / "pyproject.toml").read_text() for folder in folders(root)}
    return {"core" if folder == root else folder.name: VERSION.findall(text)[0] for folder, text in texts.items()}


def needs(root: Path = ROOT) -> set[str]:
    """What the distributions ask of each other's versions; one item if all is well."""
    texts = [(folder / "pyproject.toml").read_text() for folder in folders(root)]
    return {bound for text in texts for _, bound in NEED.findall(listed(text))}


def listed(text: str) -> str:
    """The dependencies in it."""
    return "\n".join(re.findall(r"^dependencies = \[.*?\]$", text, re.M | re.S))


def with_version(text: str, version: str) -> str:
    """A pyproject.toml of this version."""
    text = VERSION.sub(f'version = "{version}"', text, count=1)
    before = listed(text)
    return text.replace(before, NEED.sub(rf'"\1~={version}"', before)) if before else text


def set_version(version: str, root: Path = ROOT) -> None:
    """Write it everywhere. Raises ValueError if it is no version."""
    if not FORM.fullmatch(version):
        raise ValueError(f"expected a version such as 0.2.0 or 0.2.0rc1, found {version!r}")
    for folder in folders(root):
        path = folder / "pyproject.toml"
        path.write_text(with_version(path.read_text(), version))


def problem(root: Path = ROOT) -> str | None:
    """Why these distributions do not belong together, or None."""
    said, bounds = versions(root), needs(root)
    version = said["core"]
    if set(said.values()) == {version} and bounds == {f"~={version}"}:
        return None
    return (
        f"expected {version} everywhere, and ~={version} of each other, found {said} and {sorted(bounds)}; "
        f"run: python tools/version.py {version}"
    )


def main(argv: list[str]) -> str | None:
    """What to exit with."""
    if len(argv) > 1:
        return "expected one version or none: python tools/version.py [0.2.0]"
    try:
        for version in argv:
            set_version(version)
    except ValueError as error:
        return str(error)
    print(versions()["core"])
    return problem()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
