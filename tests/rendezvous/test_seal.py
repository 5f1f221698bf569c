"""Signatures: which values are accepted, which are refused, and what is logged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.rendezvous import RendezvousParameters
from elastic_core.rendezvous.seal import HmacSeal, seal_of

SECRET, OTHER = b"a secret of the job", b"another secret, also"
PLACE = "elastic/job/0123456789abcdef/s/7"


@pytest.fixture
def seal():
    return HmacSeal("job", [SECRET])


@given(st.binary(max_size=200), st.text(max_size=20))
def test_value_is_valid_only_in_its_place(data, place):
    seal = HmacSeal("job", [SECRET])
    value = seal.sealed(place, data)
    assert seal.opened(place, value) == data
    assert seal.opened(place + "x", value) is None
    assert seal.opened("x" + place, value) is None


@given(st.data())
def test_changed_byte_invalidates_the_value(data):
    seal = HmacSeal("job", [SECRET])
    value = bytearray(seal.sealed(PLACE, b"a value of a node"))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    assert seal.opened(PLACE, bytes(value)) is None


def test_place_and_data_cannot_be_shifted(seal):
    value = seal.sealed("a", b"1:b")
    assert seal.opened("a1:", value) is None
    assert seal.opened("a", value[:-3] + b"b") is None


def test_each_job_has_a_separate_key(seal):
    assert HmacSeal("job2", [SECRET]).opened(PLACE, seal.sealed(PLACE, b"x")) is None


def test_values_pass_unsigned_without_a_secret():
    free = HmacSeal("job")
    assert not free.signs
    assert free.sealed(PLACE, b"x") == free.opened(PLACE, b"x") == free.state(PLACE, b"x", 1) == b"x"


def test_first_secret_signs_and_both_are_accepted(seal):
    both, newer = HmacSeal("job", [OTHER, SECRET]), HmacSeal("job", [OTHER])
    assert both.opened(PLACE, seal.sealed(PLACE, b"x")) == b"x"
    assert newer.opened(PLACE, both.sealed(PLACE, b"x")) == b"x"
    assert seal.opened(PLACE, both.sealed(PLACE, b"x")) is None


def test_new_secret_is_read_when_first_seen(seal, capsys):
    secrets = [SECRET]
    old = HmacSeal("job", [SECRET], lambda: tuple(secrets))
    value = HmacSeal("job", [OTHER]).sealed(PLACE, b"x")
    assert old.opened(PLACE, value) is None
    secrets.insert(0, OTHER)
    later = HmacSeal("job", [OTHER]).sealed("elsewhere", b"x")
    assert old.opened("elsewhere", later) == b"x"
    assert HmacSeal("job", [OTHER]).opened(PLACE, old.sealed(PLACE, b"y")) == b"y"
    assert "signed with another secret" in capsys.readouterr().err


def test_refused_values_are_counted_and_logged_once(seal, capsys):
    for _ in range(3):
        assert seal.opened(PLACE, b"rubbish") is None
    assert seal.opened(PLACE, HmacSeal("job", [OTHER]).sealed(PLACE, b"x")) is None
    assert seal.opened(PLACE, seal.sealed("elsewhere", b"x")) is None
    assert seal.refused == 3
    logged = capsys.readouterr().err
    assert logged.count(PLACE) == 3
    assert SECRET.decode() not in logged and OTHER.decode() not in logged
    for reason in ("an unsigned value", "with another secret", "changed or signed for another place"):
        assert logged.count(reason) == 1


@pytest.mark.parametrize(
    ("value", "others"),
    [
        (b"rubbish", False),
        (b'{"version":3,"round":1}', True),
        (HmacSeal("job", [OTHER]).sealed(PLACE, b"x"), True),
        (HmacSeal("job", [SECRET]).sealed("elsewhere", b"x"), False),
    ],
)
def test_signed_foreign_state_is_distinguished(seal, value, others):
    with pytest.raises(ForeignStateError, match="--rdzv-secret-file") as caught:
        seal.state(PLACE, value, 7)
    assert (caught.value.token, caught.value.others) == (7, others)


# -- the file


def params(path, run_id="job"):
    return RendezvousParameters("c10d", "node0:29400", run_id, 1, 2, secret_file=str(path))


def written(path, content):
    path.touch(0o600)
    path.write_bytes(content)
    return path


def test_file_holds_one_secret_per_line(tmp_path):
    path = written(tmp_path / "secret", b"\n" + OTHER + b"\r\n\n" + SECRET + b"\n")
    found = seal_of(params(path))
    assert found.signs
    assert HmacSeal("job", [OTHER]).opened(PLACE, found.sealed(PLACE, b"x")) == b"x"
    assert found.opened(PLACE, HmacSeal("job", [SECRET]).sealed(PLACE, b"y")) == b"y"


def test_without_a_file_nothing_is_signed():
    assert not seal_of(RendezvousParameters("c10d", "", "job", 1, 2)).signs


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"short", "the shortest has 5; create one with"),
        (b"\n \n", "found 0"),
        (b"", "is empty"),
        (SECRET + b"\nshort\n", "the shortest has 5"),
        ((SECRET + b"\n") * 9, "found 9"),
    ],
)
def test_invalid_file_is_an_error_without_its_content(tmp_path, content, found):
    path = written(tmp_path / "secret", content)
    with pytest.raises(ConfigurationError, match=found) as caught:
        seal_of(params(path))
    assert caught.value.problems[0].origin == "--rdzv-secret-file"
    assert SECRET.decode() not in str(caught.value)


def test_world_readable_file_is_refused(tmp_path):
    path = written(tmp_path / "secret", SECRET)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="other users can read"):
        seal_of(params(path))
