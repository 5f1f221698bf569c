"""The pages on Slurm and Kubernetes name the variables that are read."""

from __future__ import annotations

import re
from pathlib import Path

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = ((ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in ("slurm", "kubernetes"))


def test_slurms_page_has_a_row_for_each_setting_with_all_variables():
    rows = {cells[0]: cells[1] for cells in re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", SLURM, re.M)}
    for name, variables in READ.items():
        theirs = {variable for variable in variables if variable.startswith("SLURM_")}
        assert set(re.findall(r"SLURM_\w+", rows[SPECS[name].flag])) == theirs


def test_what_is_not_slurms_is_the_indexed_jobs():
    others = {variable for variables in READ.values() for variable in variables if "SLURM" not in variable}
    assert set(re.findall(r"JOB_COMPLETION_\w+", KUBERNETES)) == others
