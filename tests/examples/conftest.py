"""The blocks of pages come from beside the tests of the docs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # `slurm_cluster`
sys.path.append(str(Path(__file__).parents[1] / "docs"))
