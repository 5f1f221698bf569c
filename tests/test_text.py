from __future__ import annotations

import pytest

from elastic_core.hooks import Option
from elastic_core.hooks.options import type_options
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.parsing import parse_boolean
from elastic_core.text import did_you_mean, nearest, normalised, truth

SPELLINGS = {
    **dict.fromkeys(["1", "true", "T", "Yes", "y", "ON", " on ", 1, True], True),
    **dict.fromkeys(["0", "false", "F", "No", "n", "OFF", 0, False], False),
}


@pytest.mark.parametrize(("spelt", "value"), SPELLINGS.items())
def test_every_reader_knows_the_same_words(spelt, value):
    assert truth(spelt) is value
    assert parse_boolean(spelt) is value
    assert type_options((Option("x", bool, None, "a test"),), {"x": spelt}, "o")[0] == {"x": value}
    assert RendezvousParameters("local", "", "job", 1, 1, x=spelt).get_as_bool("x") is value


@pytest.mark.parametrize("word", ["", "maybe", "2", None, "truee"])
def test_other_words_are_no_truth_values(word):
    assert truth(word) is None


def test_the_nearest_name():
    assert nearest("nnode", ["nnodes", "role"]) == "nnodes"
    assert nearest("etdc", ["c10d", "etcd", "local"]) == "etcd"
    assert nearest("ETCD", ["c10d", "etcd"]) == "etcd"
    assert nearest("etcd", ["c10d", "ETCD"]) == "ETCD"


def test_the_beginning_of_a_name_will_do():
    assert nearest("nproc", ["nproc_per_node"]) == "nproc_per_node"


def test_nothing_is_near():
    assert nearest("zookeeper", ["c10d", "etcd"]) is None
    assert nearest("PORT", ["HEALTH_PORT"], 0.8) is None


@pytest.mark.parametrize("spelling", ["elastic-etcd", "Elastic_Etcd", "elastic.etcd", " elastic--etcd "])
def test_spellings_that_package_indexes_hold_equal_are_equal(spelling):
    assert normalised(spelling) == "elastic-etcd"


def test_hint_is_empty_when_nothing_is_near():
    assert did_you_mean("etdc", ["etcd"]) == "; did you mean 'etcd'?"
    assert did_you_mean("zookeeper", ["etcd"]) == ""
