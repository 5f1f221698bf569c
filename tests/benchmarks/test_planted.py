"""The planted defects replace functions of the code by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
PLANTED_IN_FORKS = f"""
import os, sys

sys.path.append({str(ROOT)!r})
from benchmarks.planted import DEFECTS

for name, defect in DEFECTS.items():
    if (pid := os.fork()) == 0:
        try:
            defect.plant()
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
print("end")
"""


def test_every_defect_can_be_planted():
    command = [sys.executable, "-c", PLANTED_IN_FORKS, "run", "--max-restarts=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout == "end\n", done.stderr
