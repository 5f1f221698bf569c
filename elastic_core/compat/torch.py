"""Replaces torch's names in a program that imports `torch.distributed.elastic`, `.launcher` or `.run`:

    python -m elastic_core.compat.torch PROGRAM [ARGUMENTS]
    import elastic_core.compat.torch  # at the top of the program, before torch's modules are imported

`compat.names` lists the replaced modules and names. All other modules, such as `torch.distributed.elastic.utils`,
remain torch's. If a replacement module lacks a name, accessing that name raises AttributeError; the page "Moving from
torchrun" lists alternatives. Workers are separate processes, and use torch's modules unless they also import this
module.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import runpy
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.compat.names import MODULES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class _Ours(importlib.machinery.SourceFileLoader):
    """Loads a module's replacement. Each name is imported from our modules on first access."""

    def exec_module(self, module: ModuleType) -> None:
        names = MODULES[module.__name__]

        def found(name: str) -> Any:
            if name not in names:
                raise AttributeError(
                    f"elastic-core's replacement for the module {module.__name__!r} has no {name!r}; for alternatives, "
                    "see the page Moving from torchrun"
                )
            return getattr(importlib.import_module(names[name]), name)

        module.__dict__.update(__all__=sorted(name for name in names if name[0] != "_"), __getattr__=found)


class _Finder:
    """Finds our replacements of the modules in `MODULES` before torch's own modules. All other submodules remain
    torch's."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Ours(fullname, spec.origin or "")
        return spec


def _get_fq_hostname() -> str:
    """Return this machine's full name. torch.distributed.checkpoint imports this function."""
    return socket.getfqdn(socket.gethostname())


def install() -> None:
    """Replace torch's names with ours in this process. Idempotent.

    Raises:
        RuntimeError: torch's version of one of the modules has already been imported. The two versions would be mixed.
    """
    if _Finder in sys.meta_path:
        return
    early = sorted(MODULES.keys() & sys.modules.keys())
    if early:
        raise RuntimeError(f"{__name__} must be imported before {', '.join(early)}")
    sys.meta_path.insert(0, _Finder)


def _run_program(argv: Sequence[str]) -> None:
    if not argv or argv[0].startswith("-"):
        sys.exit(f"usage: python -m {__spec__.name} PROGRAM [ARGUMENTS]")
    sys.argv[:] = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    import elastic_core.compat.torch  # noqa: F401 - installs as the module that programs import, not as __main__

    _run_program(sys.argv[1:])
else:
    install()
