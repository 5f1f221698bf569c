"""Our names in place of torch's, for a program that imports `torch.distributed.elastic`, `.launcher` or `.run`:

    python -m elastic_core.compat.torch PROGRAM [ARGUMENTS]
    import elastic_core.compat.torch  # at the top of the program, before torch's modules are imported

`compat.names` says which names are replaced. Modules of torch that are not in it stay torch's, such as
`torch.distributed.elastic.utils`; a name that is missing from one that is in it raises AttributeError, and the page
"Moving from torchrun" says what to use. Workers are other processes: they import torch's modules, unless they import
this one, too.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.compat.names import MODULES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class _Ours(importlib.machinery.SourceFileLoader):
    """Fills a module of torch's with names of ours, each when it is first asked for."""

    def exec_module(self, module: ModuleType) -> None:
        names = MODULES[module.__name__]

        def found(name: str) -> Any:
            if name not in names:
                raise AttributeError(
                    f"module {module.__name__!r} in the place of torch's has no {name!r}: elastic-core has another way "
                    "for it or none, see the page Moving from torchrun"
                )
            return getattr(importlib.import_module(names[name]), name)

        module.__dict__.update(__all__=sorted(names), __getattr__=found)


class _Finder:
    """Finds the modules of `MODULES` before torch's are found. Other modules below them are torch's still."""

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


def install() -> None:
    """Put our names into the place of torch's, for this process from now on. Idempotent.

    Raises:
        RuntimeError: one of torch's modules is there already, so that the program has names of both.
    """
    if _Finder in sys.meta_path:
        return
    early = sorted(MODULES.keys() & sys.modules.keys())
    if early:
        raise RuntimeError(f"expected to be imported before torch's launcher, found that {', '.join(early)} is there")
    sys.meta_path.insert(0, _Finder)


def _run_program(argv: Sequence[str]) -> None:
    if not argv or argv[0].startswith("-"):
        sys.exit(
            f"elastic: expected python -m {__spec__.name} PROGRAM [ARGUMENTS], found {' '.join(argv) or 'nothing'}"
        )
    sys.argv[:] = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    from elastic_core.compat.torch import install as _install  # the module of that name, which programs import, too

    _install()
    _run_program(sys.argv[1:])
else:
    install()
