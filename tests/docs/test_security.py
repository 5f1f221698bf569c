"""Runs the commands in docs/guides/security.md for two nodes on this machine."""

from __future__ import annotations

import pytest
from blocks import block_of, free_port

pytestmark = pytest.mark.torch


def test_two_nodes_meet_with_the_documented_secret(shell, tmp_path):
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['WORLD_SIZE'])\n")
    made, run = block_of("docs/guides/security.md", "openssl rand").split("elastic run")
    shell.run(made)
    assert (tmp_path / "job.secret").stat().st_mode & 0o777 == 0o600
    command = "elastic run" + run.replace("node0:29400", f"127.0.0.1:{free_port()}")
    said = shell.run(command, times=2)
    assert said.count("round formed: round=1 nodes=2") == 2
    assert "not signed" not in said
