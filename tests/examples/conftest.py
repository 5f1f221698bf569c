"""Makes `blocks`, a helper of the docs' tests, importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # `slurm_cluster`
sys.path.append(str(Path(__file__).parents[1] / "docs"))
