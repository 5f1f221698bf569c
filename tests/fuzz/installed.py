"""The targets of the core and of the installed plugins. A plugin's are next to its tests, in `fuzz_targets.py`."""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.targets import Target

_FILES = {file.parts[-3].replace("-", "_"): file
          for file in sorted(Path(__file__).parents[2].glob("plugins/*/tests/fuzz_targets.py"))}  # fmt: skip
PLUGINS = tuple(filter(find_spec, _FILES))
"""The installed packages that have targets."""


def load_targets() -> dict[str, Target]:
    """Return all targets by name. The first call imports their packages."""
    from fuzz.targets import TARGETS

    for package in PLUGINS:
        spec = spec_from_file_location(f"fuzz_targets_of_{package}", _FILES[package])
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))
    return TARGETS
