"""One version for all distributions: `python tools/version.py` prints it, `python tools/version.py 0.2.0` sets it.

Each pyproject.toml has the version, so that each folder and its sdist can be built alone. This tool keeps them equal.
Setting the version writes it into every distribution, together with the bounds on our other distributions. Printing it
fails if they differ. A plugin needs a core of the same minor release that is not older than the plugin.
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
    """The folders of all distributions, the core first."""
    return [root, *(path.parent for path in sorted(root.glob("plugins/*/pyproject.toml")))]


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version in each folder, by the folder's name (`core` for the root)."""
    texts = {folder: (folder / "pyproject.toml").read_text() for folder in folders(root)}
    return {"core" if folder == root else folder.name: VERSION.findall(text)[0] for folder, text in texts.items()}


def needs(root: Path = ROOT) -> set[str]:
    """The bounds on each other's versions; a single one if all agree."""
    texts = [(folder / "pyproject.toml").read_text() for folder in folders(root)]
    return {bound for text in texts for _, bound in NEED.findall(listed(text))}


def listed(text: str) -> str:
    """The dependencies in a pyproject.toml."""
    return "\n".join(re.findall(r"^dependencies = \[.*?\]$", text, re.M | re.S))


def with_version(text: str, version: str) -> str:
    """The text of a pyproject.toml with this version."""
    text = VERSION.sub(f'version = "{version}"', text, count=1)
    before = listed(text)
    return text.replace(before, NEED.sub(rf'"\1~={version}"', before)) if before else text


def set_version(version: str, root: Path = ROOT) -> None:
    """Write the version into every pyproject.toml. Raises ValueError if it is malformed."""
    if not FORM.fullmatch(version):
        raise ValueError(f"expected a version such as 0.2.0 or 0.2.0rc1, found {version!r}")
    for folder in folders(root):
        path = folder / "pyproject.toml"
        path.write_text(with_version(path.read_text(), version))


def problem(root: Path = ROOT) -> str | None:
    """How the versions of these distributions disagree, or None."""
    found, bounds = versions(root), needs(root)
    version = found["core"]
    if set(found.values()) == {version} and bounds == {f"~={version}"}:
        return None
    return (
        f"expected {version} everywhere and bounds of ~={version}, found {found} and {sorted(bounds)}; "
        f"run: python tools/version.py {version}"
    )


def main(argv: list[str]) -> str | None:
    """Set or print the version. Returns the error, if any, for sys.exit."""
    if len(argv) > 1:
        return "usage: python tools/version.py [VERSION]"
    try:
        for version in argv:
            set_version(version)
    except ValueError as error:
        return str(error)
    print(versions()["core"])
    return problem()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
