"""The benchmark on paper runs, for few nodes; and what is no time holds for 10,000."""

from __future__ import annotations

import pytest

from benchmarks import paper
from benchmarks.job import BenchmarkError


def measured(*nodes):
    arguments = paper.options().parse_args(["--nodes", ",".join(map(str, nodes)), "--repetitions", "1"])
    return paper.measure(arguments)


def test_every_figure_is_there_for_every_number_of_nodes():
    report = measured(2, 20)
    assert [row.what.partition(": ")[0] for row in report.rows] == ["2 nodes"] * 14 + ["20 nodes"] * 14
    assert all(row.values["elastic"] > 0 for row in report.rows)
    assert all(row.met is None for row in report.rows)
    assert len(report.measurements["20"]["milliseconds"]["newcomer"]) == 1


def test_only_a_job_of_10000_is_judged():
    times = {what: [51.0, 49.0] for what in paper.TIMES}
    judged = {row.what: row.met for row in paper.rows(10_000, 1536.0, times) if row.target}
    assert judged == {"10000 nodes: state": False} | {f"10000 nodes: {what}": True for what in paper.BOUNDED}
    assert all(row.met is None for row in paper.rows(1000, 9999.0, times))


def test_one_node_is_no_job_to_measure():
    with pytest.raises(BenchmarkError, match="2 or more"):
        measured(1)


def test_the_state_of_10000_nodes_fits_into_etcd():
    assert paper.Figures(10_000).state_kib < paper.STATE_KIB
