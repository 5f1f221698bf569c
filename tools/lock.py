"""Write requirements/*.txt: versions and hashes of all packages that a change is checked with, from names in tox.ini.

`tox run -e lock` picks the newest versions that fit. Torch is left out, because its wheels differ by device.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST_PYTHON = "3.10"
_ALL = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
WITH_OURS = {"demo": [ROOT], "fuzz": _ALL, "py": _ALL, "run": _ALL}
"""Our distributions that an environment installs, and whose dependencies it therefore needs."""
_REFERENCE = re.compile(r"\{\[([\w:]+)\](\w+)\}")
_NEED = re.compile(r'"([^"]+)"')
_OURS = re.compile("elastic-|torch")


def names(environment: str) -> list[str]:
    """The requirements of an environment, without our distributions and torch."""
    tox = configparser.RawConfigParser()
    tox.read(ROOT / "tox.ini")

    def expanded(text: str) -> str:
        return _REFERENCE.sub(lambda found: expanded(tox[found[1]][found[2]]), text)

    asked = expanded(tox["locked"][environment]).split("\n")
    asked += [need for folder in WITH_OURS.get(environment, []) for need in needs(folder)]
    return sorted({line.strip() for line in asked if line.strip() and not _OURS.match(line.strip())})


def needs(folder: Path) -> list[str]:
    """The dependencies of the distribution in this folder, without its extras."""
    found = re.search(r"^dependencies = \[(.*?)\]$", (folder / "pyproject.toml").read_text(), re.M | re.S)
    return _NEED.findall(found[1]) if found else []


def environments() -> list[str]:
    """The environments that have a lock file."""
    tox = configparser.RawConfigParser()
    tox.read(ROOT / "tox.ini")
    return list(tox["locked"])


def main() -> None:
    for environment in environments():
        path = ROOT / "requirements" / f"{environment}.txt"
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON]
        command += ["--generate-hashes", "--no-annotate", "--no-header", "--upgrade", "-", "--output-file", str(path)]
        subprocess.run(command, input="\n".join(names(environment)), text=True, check=True)
        print(f"{path.name}: {path.read_text().count('==')} packages")


if __name__ == "__main__":
    sys.exit(main())
