"""Fixtures and helper modules of the end-to-end tests and of the docs' tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "tests" / "docs"))  # `blocks`
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

from running import elastic

__all__ = ["elastic"]
