"""Real runs of `elastic run`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`

from running import elastic

__all__ = ["elastic"]
