"""The table of differences from torch's names matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torch-names.md"
ROW = re.compile(r"^\| `([\w.]+\w)` \| (.+) \| (.+) \|$", re.M)


@pytest.mark.torch
def test_every_difference_is_in_the_table_with_its_reason():
    pytest.importorskip("elastic_etcd_legacy")
    import torch_names

    rows = {name: (difference, why) for name, difference, why in ROW.findall(PAGE.read_text())}
    assert {name: difference for name, (difference, _) in rows.items()} == torch_names.differences()
    assert [name for name, (_, why) in rows.items() if len(why) < len("internal")] == []
