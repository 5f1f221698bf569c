"""The pages about Slurm and Kubernetes, the examples and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("slurm", "kubernetes"))
JOB = (ROOT / "examples" / "kubernetes" / "job.yaml").read_text()


def test_slurms_page_has_a_row_for_each_setting_with_all_variables():
    rows = {cells[0]: cells[1] for cells in re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", SLURM, re.M)}
    for name, variables in READ.items():
        theirs = {variable for variable in variables if variable.startswith("SLURM_")}
        assert set(re.findall(r"SLURM_\w+", rows[SPECS[name].flag])) == theirs


def test_what_is_not_slurms_is_the_indexed_jobs():
    others = {variable for variables in READ.values() for variable in variables if "SLURM" not in variable}
    assert set(re.findall(r"JOB_COMPLETION_\w+", KUBERNETES)) == others


@pytest.mark.parametrize(
    ("of_job", "of_page"),
    [
        (r"--shutdown-timeout=(\d+)", "`--shutdown-timeout` ({})"),
        (r" --timeout=(\d+)", "still there after {} s"),
        (r"terminationGracePeriodSeconds: (\d+)", "`terminationGracePeriodSeconds` ({})"),
        (r"backoffLimit: (\d+)", "`backoffLimit: {}`"),
    ],
)
def test_the_figures_of_a_pod_are_those_of_the_manifest(of_job, of_page):
    assert of_page.format(re.search(of_job, JOB)[1]) in KUBERNETES


@pytest.mark.parametrize("script", sorted((ROOT / "examples" / "slurm").glob("*.sbatch")), ids=lambda path: path.stem)
def test_the_times_of_a_batch_script_are_those_of_the_page(script):
    text = script.read_text()
    before, grace = re.search(r"--signal=(B:USR1@\d+)", text)[1], re.search(r"--shutdown-timeout=\d+", text)[0]
    assert f"`#SBATCH --signal={before}`" in SLURM
    assert f"`{grace}`" in SLURM
    assert f"../examples/slurm/{script.name}" in SLURM


@pytest.mark.parametrize("page", [SLURM, KUBERNETES], ids=["slurm", "kubernetes"])
def test_the_time_for_a_kill_is_the_default(page):
    assert f"`--kill-timeout` ({SPECS['kill_timeout'].default:g})" in page
