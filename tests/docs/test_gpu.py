"""The script in docs/guides/gpu.md runs, here with two workers on the CPU."""

from __future__ import annotations

import pytest
from blocks import block_of

PAGE = "docs/guides/gpu.md"


@pytest.mark.torch
def test_script_reduces_over_all_workers(shell, tmp_path):
    (tmp_path / "train.py").write_text(block_of(PAGE, "torch.cuda.set_device"))
    command = block_of(PAGE, "elastic run").replace("=gpu", "=2")
    said = shell.run(command, CUDA_VISIBLE_DEVICES="")
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cpu: 2\n" in said
