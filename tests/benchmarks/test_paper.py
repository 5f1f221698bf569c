"""The benchmark `paper` runs with a few nodes, and the size of the state holds for 10,000."""

from __future__ import annotations

import pytest

from benchmarks import paper

pytestmark = pytest.mark.integration


def measured(*nodes):
    arguments = paper.options().parse_args(["--nodes", ",".join(map(str, nodes)), "--repetitions", "1"])
    return paper.measure(arguments)


def test_all_figures_exist_for_every_number_of_nodes():
    report = measured(2, 20)
    assert [row.what.partition(": ")[0] for row in report.rows] == ["2 nodes"] * 14 + ["20 nodes"] * 14
    assert all(row.values["elastic"] > 0 for row in report.rows)
    assert all(row.met is None for row in report.rows)
    assert len(report.measurements["20"]["milliseconds"]["newcomer"]) == 1


def test_state_of_10000_nodes_fits_into_etcd():
    assert paper.Figures(10_000).state_kib < paper.STATE_KIB
