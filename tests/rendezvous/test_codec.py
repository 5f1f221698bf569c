from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.errors import ProcessFailure, RendezvousStateError
from elastic_core.interfaces.health import StopStatus
from elastic_core.interfaces.node import Member
from elastic_core.rendezvous import codec
from elastic_core.rendezvous.codec import bounded, decoded_entry, decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.model import (
    Cause,
    Closed,
    End,
    Entry,
    Report,
    Reported,
    RoundId,
    Seat,
    Seats,
    State,
    ended,
    failed,
)
from elastic_core.rendezvous.seal import HmacSeal

numbers = st.integers(0, 2**31)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), max_size=8)
round_ids = st.builds(RoundId, numbers, names)
texts = st.lists(text, max_size=3, unique=True).map(tuple)
several_names = st.lists(names, max_size=3, unique=True).map(tuple)
members = st.builds(Member, names, names, names, names, st.integers(1, 1000))
ports = st.integers(0, 65535)
seats = st.lists(st.builds(Seat, names, members, ports, ports), max_size=4, unique_by=lambda seat: seat.key)
failures = st.builds(
    ProcessFailure,
    numbers,
    numbers,
    st.integers(-64, 255),
    text,
    text,
    st.floats(0, 2e9),
    st.integers(-1, 10**6),
    text,
    text,
    numbers,
    text,
    texts,
    st.just({}),
    st.none() | numbers,
    st.booleans(),
    text,
)
reports = st.builds(Report, names, text, st.lists(failures, max_size=2).map(tuple), st.booleans(), numbers)
ends = st.builds(End, st.sampled_from(Cause), text, text, st.lists(reports, max_size=3).map(tuple), st.booleans())


@st.composite
def states(draw):
    state = draw(whole_states)
    gone = tuple(key for key in state.seats.keys if draw(st.booleans()))
    return replace(state, gone=gone, done=tuple(key for key in state.seats.keys if key not in gone))


whole_states = st.builds(
    State,
    round_ids,
    st.booleans(),
    seats.map(Seats.of),
    st.just(()),
    st.just(()),
    st.dictionaries(names, st.none() | st.floats(0, 1e6), max_size=3),
    round_ids,
    st.none() | ends,
    numbers,
    numbers,
    st.none() | st.builds(Closed, text, text, st.booleans()),
    text,
    st.lists(st.tuples(names, text), max_size=3).map(tuple),
    numbers,
    numbers,
    numbers,
    names,
)
times = st.floats(0, 1e11)
ranks = st.lists(st.integers(0, 99), max_size=3).map(tuple)
entries = st.builds(
    Entry,
    names,
    names,
    names,
    names,
    ports,
    names,
    st.integers(1, 1000),
    st.none() | st.integers(-5, 5),
    numbers,
    st.dictionaries(text, text, max_size=3),
    st.floats(0, 1e6),
    round_ids,
    st.booleans(),
    round_ids,
    st.none() | st.builds(Reported, round_ids, st.none() | reports, text, st.lists(names, max_size=3).map(tuple)),
    several_names,
    ports,
    st.none() | st.builds(StopStatus, numbers, numbers, times, times, ranks, ranks),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(states())
def test_state_round_trip(state):
    assert decoded_state(encoded_state(state)) == state


@given(entries)
def test_entry_round_trip(entry):
    assert decoded_entry(encoded_entry(entry)) == entry


def document_of(data):
    """The JSON document at the start of the data."""
    return json.loads(data.partition(b"\n")[0].decode("ascii"))


def with_document(data, document):
    """The same data with another JSON document at the start."""
    _, separator, rest = data.partition(b"\n")
    return json.dumps(document).encode() + separator + rest


def test_state_begins_with_versioned_ascii_json():
    assert document_of(encoded_state(State(reason="é")))["version"] == codec.VERSION


DECODERS = [(decoded_state, encoded_state(State())), (decoded_entry, encoded_entry(Entry("a/1", "a")))]
both = pytest.mark.parametrize(("decoded", "good"), DECODERS, ids=["state", "entry"])


def refused(decoded, data):
    """The decoded value, or None if decoding failed with the documented error."""
    try:
        return decoded(data)
    except RendezvousStateError as error:
        assert str(error).startswith("expected a rendezvous ")
        assert len(str(error)) < 1000
        return None


@both
@given(data=st.data(), value=values)
@settings(max_examples=60)
def test_any_field_value_is_accepted_or_refused(decoded, good, data, value):
    document = document_of(good)
    document[data.draw(st.sampled_from(sorted(document)))] = value
    again = refused(decoded, with_document(good, document))
    if again is not None:
        encoded = encoded_state if isinstance(again, State) else encoded_entry
        assert decoded(encoded(again)) == again


@both
def test_missing_field_is_refused(decoded, good):
    for name in document_of(good):
        document = document_of(good)
        del document[name]
        assert refused(decoded, with_document(good, document)) is None


@both
@pytest.mark.parametrize("version", [1, 0, "2", None, True, 2.0, [2]])
def test_other_version_is_named(decoded, good, version):
    document = {**document_of(good), "version": version}
    with pytest.raises(
        RendezvousStateError, match=rf"of version {codec.VERSION}, found version .*same version of elastic-core"
    ):
        decoded(with_document(good, document))


@both
@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"3", b'"version"', b"\xff\xfe", b"\x80\x04pickle", b"{"])
def test_non_object_is_refused(decoded, good, data):
    assert refused(decoded, data) is None


@both
def test_oversized_input_is_not_parsed(decoded, good):
    with pytest.raises(RendezvousStateError, match="bytes, which exceeds the limit"):
        decoded(good + b" " * codec.LONGEST_STATE)


@both
def test_signed_value_without_a_secret_names_the_secret(decoded, good):
    with pytest.raises(RendezvousStateError, match="every node needs the same --rdzv-secret-file"):
        decoded(HmacSeal("job", [b"the secret of the job"]).sealed("place", good))


@both
@pytest.mark.parametrize("depth", [100, 900, 950, 990, 1000, 20_000])
def test_deeply_nested_input_is_refused(decoded, good, depth):
    document = document_of(good)
    deep = b"[" * depth + b"]" * depth
    for name in document:
        data = with_document(good, {**document, name: "DEEP"}).replace(b'"DEEP"', deep)
        assert refused(decoded, data) is None


@both
@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "9" * 30, "9" * 4000, "9" * 6000])
def test_extreme_numbers_are_refused(decoded, good, number):
    name = "restarts" if decoded is decoded_state else "max_restarts"
    data = with_document(good, {**document_of(good), name: "NUMBER"}).replace(b'"NUMBER"', number.encode())
    assert refused(decoded, data) is None


def test_node_without_workers_is_refused():
    """Otherwise the leader would seat it, and no node could read the state."""
    with pytest.raises(RendezvousStateError, match="expected at least one worker"):
        decoded_entry(encoded_entry(Entry("a/1", "a", local_world_size=0)))


@pytest.mark.parametrize("key", ["", "b/1"])
def test_entry_under_another_key_is_refused(key):
    with pytest.raises(RendezvousStateError, match=f"expected the entry of '{key}', found that of 'a/1'"):
        decoded_entry(encoded_entry(Entry("a/1", "a")), key)


@given(st.data())
def test_corrupted_seats_are_detected(data):
    state = State(seats=Seats.of(Seat(f"node{i}/1", Member(f"node{i}", "host", "", "default", 1)) for i in range(3)))
    good = bytearray(encoded_state(state))
    place = data.draw(st.integers(good.index(b"\n") + 1, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    found = refused(decoded_state, bytes(good))
    assert found is None or found == state  # a bit of the compressed data that does not affect the text


def with_seats(text, count):
    """A state whose seat block is this text."""
    document = {**document_of(encoded_state(State())), "seats": count}
    return json.dumps(document).encode() + b"\n" + zlib.compress(text)


@pytest.mark.parametrize("rest", [b"", b"\nabc", b"\n" + zlib.compress(b"x")[:-1], b"\n" + zlib.compress(b"") + b"x"])
def test_invalid_seat_block_is_refused(rest):
    head = encoded_state(State()).partition(b"\n")[0]
    assert refused(decoded_state, head + rest) is None


@pytest.mark.parametrize(("text", "count"), [(b"\nk\tn\th\ta\tr\t1\t0\t1", 2), (b"\n\xff", 1)])
def test_wrong_count_or_encoding_of_seats_is_refused(text, count):
    assert refused(decoded_state, with_seats(text, count)) is None


def test_oversized_seat_block_is_not_unpacked():
    bomb = with_seats(b"\n" * (codec.LONGEST_STATE + 1), codec.LONGEST_STATE + 1)
    assert len(bomb) < 100_000
    assert refused(decoded_state, bomb) is None


@pytest.mark.parametrize(
    "line",
    ["abcdefg", "", "k\tn\th\ta\tr\t1\t1", "k\tn\th\ta\tr\tx\t1\t1", "k\tn\th\ta\tr\t1\t1\t1\tmore"]
    + [f"k\tn\th\ta\tr\t{port}\t0\t{size}" for port, size in [(1, 0), (-1, 1), (1, 1.5), ("1" * 20, 1), (1, "x")]]
    + [f"k\tn\th\ta\tr\t1\t{lifeline}\t1" for lifeline in (-1, 65536, "x", "")],
)
def test_invalid_seat_is_refused(line):
    assert refused(decoded_state, with_seats(f"\n{line}".encode(), 1)) is None


def test_two_seats_of_one_node_are_refused(build):
    data = encoded_state(replace(build.state("ab"), seats=build.seats("aa")))
    assert refused(decoded_state, data) is None


@given(seats)
def test_seats_round_trip(given):
    read = decoded_state(encoded_state(State(seats=Seats.of(given)))).seats
    assert (len(read), list(read), read[:], read) == (len(given), given, tuple(given), Seats.of(given))
    assert [read[place] for place in range(len(given))] == given
    assert list(read.keys) == [seat.key for seat in given]
    assert [read.rank(seat.key) for seat in given] == list(range(len(given)))
    assert read.members == tuple(seat.member for seat in given)


def test_unchanged_seats_are_reused(build):
    state = build.state("ab")
    known = decoded_state(encoded_state(state)).seats
    over = ended(state, Cause.LOST, "a", "", ("a",))
    assert decoded_state(encoded_state(over), known) == over
    assert decoded_state(encoded_state(over), known).seats is known
    others = replace(state, seats=build.seats("ac"))
    assert decoded_state(encoded_state(others), known) == others


# -- limits


def test_failure_is_truncated():
    long = "x" * 10_000 + "the end"
    cut = bounded(
        ProcessFailure(0, 1, 2, message=long, stderr_tail=(long,) * 50, error_file_data={"deep": long}, caused_by=3)
    )
    assert cut.message.endswith("the end")
    assert (len(cut.message), len(cut.stderr_tail[0])) == (4096, 400)
    assert (len(cut.stderr_tail), cut.error_file_data, cut.caused_by) == (20, {}, 3)


def test_stack_keeps_its_beginning_and_only_for_causes():
    hung = ProcessFailure(0, 1, -6, reason="hang: the timer", stack="first\n" + "x" * 10_000)
    assert bounded(hung).stack.startswith("first\n")
    assert len(bounded(hung).stack) == 8192
    assert bounded(replace(hung, caused_by=3)).stack == ""


def test_certain_reports_are_kept_of_many(build):
    reports = tuple(build.report(f"n{i}", certain=i in (20, 30)) for i in range(40))
    state = build.state([f"n{i}" for i in range(40)])
    for report in reports:
        state = failed(state, state.round, report)
    assert {report.key for report in state.end.reports} == {"n0", "n1", "n2", "n3", "n4", "n5", "n20", "n30"}
    assert decoded_state(encoded_state(state)).end.reports == state.end.reports
    assert all(failed(state, state.round, report) is state for report in reports)


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"])
def test_longest_entry_round_trip(character):
    """Otherwise a node would be invisible because its workers print non-ASCII text."""
    long, name = character * 10_000, "n" * 255
    failure = bounded(ProcessFailure(0, 1, 2, long, long, 0.0, 0, long, long, 0, long, (long,) * 50, stack=long))
    reported = Reported(RoundId(1, name), Report(name, name, (failure,) * 9, certain=True, number=1), "x" * 9999)
    entry = Entry(name, name, name, name, 1, name, unreachable=(name,) * 64, reported=reported)
    assert decoded_entry(encoded_entry(entry)).reported.round == reported.round


def test_largest_state_round_trip(build):
    long = "é" * 10_000
    failure = bounded(ProcessFailure(0, 1, 2, long, long, 0.0, 0, long, long, 0, long, (long,) * 50, stack=long))
    reports = tuple(Report(f"n{i}", f"n{i}", (failure,) * 9, True) for i in range(100))
    state = State(
        round=RoundId(1), seats=build.seats([f"node{i}" for i in range(5000)]), end=End(Cause.FAILURE, "a", "", reports)
    )
    data = encoded_state(state)
    assert len(data) < 1_000_000  # etcd's limit is 1.5 MiB
    assert len(decoded_state(data).seats) == 5000


@pytest.mark.parametrize("name", ["key", "node", "host", "address", "role"])
@pytest.mark.parametrize("text", ["a\tb", "a\nb", "\x00", "\x1b[31m", "\ud800", "x" * 256])
def test_invalid_name_is_refused(name, text):
    entry = replace(Entry("a/1", "a"), **{name: text})
    assert refused(decoded_entry, encoded_entry(entry)) is None
