from __future__ import annotations

import pytest

from elastic_core.hooks.names import did_you_mean, nearest, normalised


@pytest.mark.parametrize("spelling", ["elastic-etcd", "Elastic_Etcd", "elastic.etcd", " elastic--etcd "])
def test_spellings_that_package_indexes_hold_equal_are_equal(spelling):
    assert normalised(spelling) == "elastic-etcd"


def test_nearest_name():
    assert nearest("etdc", ["c10d", "etcd", "local"]) == "etcd"
    assert nearest("ETCD", ["c10d", "etcd"]) == "etcd"
    assert nearest("zookeeper", ["c10d", "etcd"]) is None


def test_hint_is_empty_when_nothing_is_near():
    assert did_you_mean("etdc", ["etcd"]) == "; did you mean 'etcd'?"
    assert did_you_mean("zookeeper", ["etcd"]) == ""
