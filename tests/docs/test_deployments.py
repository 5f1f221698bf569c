"""The pages on Slurm and Kubernetes link to the variables that are read."""

from __future__ import annotations

import re
from pathlib import Path

from elastic_core.config import SPECS
from elastic_core.config.resolve import READ

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = ((ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in ("slurm", "kubernetes"))
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()


def test_slurm_guide_names_each_setting_and_links_to_its_variables():
    assert "(../reference/settings.md#scheduler)" in SLURM
    table = SETTINGS.partition("\n## scheduler\n")[2]
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", table, re.M))
    for name, variables in READ.items():
        assert f"`{SPECS[name].flag}`" in SLURM
        assert set(re.findall(r"\w*[A-Z]_\w+", rows[SPECS[name].flag])) == set(variables)


def test_scheduler_variables_belong_to_slurm_or_indexed_jobs():
    others = {variable for variables in READ.values() for variable in variables if "SLURM" not in variable}
    assert set(re.findall(r"JOB_COMPLETION_\w+", KUBERNETES)) == others
