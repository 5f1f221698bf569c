"""Makes the benchmarks importable. No wheel has them, so the checkout comes last in the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
