from __future__ import annotations

import pytest

from elastic_core.rendezvous import RendezvousParameters


def parameters(**config):
    return RendezvousParameters("local", "host:1", "job", 1, 2, "10.0.0.1", **config)


def test_parameters_keep_their_arguments():
    params = parameters(timeout="5")
    assert (params.backend, params.endpoint, params.run_id) == ("local", "host:1", "job")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (1, 2, "10.0.0.1")
    assert params.get("timeout") == "5"
    assert params.get("other") is None
    assert params.get("other", 3) == 3


@pytest.mark.parametrize(
    ("backend", "run_id", "least", "most", "message"),
    [
        ("", "job", 1, 1, "name of the rendezvous backend"),
        ("local", "", 1, 1, "--rdzv-id"),
        ("local", "job", 0, 1, "1 <= min_nodes <= max_nodes, found 0 and 1"),
        ("local", "job", 3, 2, "found 3 and 2"),
    ],
)
def test_bounds_are_checked(backend, run_id, least, most, message):
    with pytest.raises(ValueError, match=message):
        RendezvousParameters(backend, "", run_id, least, most)


def test_integer_options_are_parsed_and_have_defaults():
    params = parameters(count="12", bad="twelve")
    assert params.get_as_int("count") == 12
    assert params.get_as_int("none") is None
    assert params.get_as_int("none", 7) == 7
    assert params.get_as_bool("none") is None
    assert params.get_as_bool("none", True) is True
    with pytest.raises(ValueError, match="whole number for the option 'bad', found 'twelve'"):
        params.get_as_int("bad")
    with pytest.raises(ValueError, match="true or false for the option 'bad', found 'twelve'"):
        params.get_as_bool("bad")
