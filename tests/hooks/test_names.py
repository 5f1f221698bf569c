from __future__ import annotations

import pytest

from elastic_core.hooks.names import did_you_mean, normalised


@pytest.mark.parametrize("spelling", ["elastic-etcd", "Elastic_Etcd", "elastic.etcd", " elastic--etcd "])
def test_spellings_that_package_indexes_hold_equal_are_equal(spelling):
    assert normalised(spelling) == "elastic-etcd"


def test_hint_is_empty_when_nothing_is_near():
    assert did_you_mean("etdc", ["etcd"]) == "; did you mean 'etcd'?"
    assert did_you_mean("zookeeper", ["etcd"]) == ""
