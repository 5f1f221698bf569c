import math
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.parsing import (
    NodeRange,
    Std,
    StreamMap,
    choice,
    format_options,
    integer,
    join_commas,
    parse_boolean,
    parse_log_level,
    parse_name_or_none,
    parse_node_range,
    parse_options,
    parse_path,
    parse_process_count,
    parse_ranks,
    parse_signals,
    parse_stream_map,
    parse_text,
    parse_texts,
    seconds,
    seconds_or_none,
    some_of,
    split_commas,
)

streams = st.sampled_from(list(Std))
parts = st.text(min_size=1).filter(lambda part: not part.startswith(","))
node_ranges = st.tuples(st.integers(1, 999), st.integers(0, 999)).map(lambda pair: NodeRange(pair[0], sum(pair)))
stream_maps = st.one_of(
    streams.map(StreamMap),
    st.dictionaries(st.integers(0, 200), streams, min_size=1).map(
        lambda named: StreamMap(named=tuple(sorted(named.items())))
    ),
)
words = st.text(st.characters(exclude_characters="=,", exclude_categories=["Z", "C"]), min_size=1)


@given(node_ranges)
def test_node_range_survives_a_round_trip(nodes):
    assert parse_node_range(str(nodes)) == nodes == parse_node_range(nodes)


@pytest.mark.parametrize("raw", ["0", "4:1", "0:3", "1:2:3", "", "two", "-1", "1:", True, 2.0, None, [1, 2]])
def test_malformed_node_range_is_rejected(raw):
    with pytest.raises(ValueError, match="expected N or MIN:MAX"):
        parse_node_range(raw)


def test_single_number_is_a_fixed_node_range():
    assert parse_node_range("3") == parse_node_range(3) == NodeRange(3, 3)


@given(stream_maps)
def test_stream_map_survives_a_round_trip(streams_by_rank):
    assert parse_stream_map(str(streams_by_rank)) == streams_by_rank == parse_stream_map(streams_by_rank)


@given(stream_maps, st.integers(0, 300))
def test_stream_map_has_a_value_for_every_rank(streams_by_rank, rank):
    expected = dict(streams_by_rank.named).get(rank, Std.NONE if streams_by_rank.named else streams_by_rank.everywhere)
    assert streams_by_rank.for_rank(rank) == expected


def test_stream_map_accepts_ranks_above_9():
    tee = parse_stream_map("0:3,11:1")
    assert [tee.for_rank(rank) for rank in (0, 1, 11)] == [Std.ALL, Std.NONE, Std.OUT]
    assert parse_stream_map({"0": 3, "11": 1}) == tee


@pytest.mark.parametrize("raw", ["4", "", "0:4", "0:3,", "a:1", "0:1,0:2", True, -1, "1,2", 1.0])
def test_malformed_stream_map_is_rejected(raw):
    with pytest.raises(ValueError, match="expected"):
        parse_stream_map(raw)


@given(st.lists(parts))
def test_comma_lists_survive_a_round_trip(texts):
    assert split_commas(join_commas(texts)) == texts


def test_doubled_comma_is_a_literal_comma():
    assert parse_texts("a,,b,c") == ("a,b", "c")
    assert parse_texts(["a,b", "c"]) == ("a,b", "c"), "list items are not split"
    assert parse_texts("") == ()


@given(st.dictionaries(words, words))
def test_options_survive_a_round_trip(options):
    assert parse_options(format_options(options)) == options == parse_options(options)


def test_options_merge_and_the_last_value_wins():
    assert parse_options(["a=1,b=2", "b=3"]) == {"a": "1", "b": "3"}
    assert parse_options({"join_timeout": 600, "is_host": True}) == {"join_timeout": "600", "is_host": "true"}
    assert parse_options("hosts=a,,b,k=x=y") == {"hosts": "a,b", "k": "x=y"}


@pytest.mark.parametrize("raw", ["a", "=1", "a=", 3, [1], {"a": [1]}])
def test_malformed_options_are_rejected(raw):
    with pytest.raises(ValueError, match="expected"):
        parse_options(raw)


@given(st.frozensets(st.integers(0, 500)))
def test_ranks_survive_a_round_trip(ranks):
    assert parse_ranks(",".join(map(str, ranks))) == ranks == parse_ranks(sorted(ranks)) == parse_ranks(ranks)


@pytest.mark.parametrize("raw", ["a", "-1", [True], True, {"a": 1}])
def test_malformed_ranks_are_rejected(raw):
    with pytest.raises(ValueError, match="expected local ranks"):
        parse_ranks(raw)


def test_signals_are_read_in_any_spelling_and_deduplicated():
    assert parse_signals("SIGTERM,int,SIGTERM") == (signal.SIGTERM, signal.SIGINT)
    assert parse_signals((signal.SIGUSR1,)) == (signal.SIGUSR1,)
    for wrong in ("SIGNOTHING", "SIGKILL", "SIGSTOP", "SIGCHLD"):
        with pytest.raises(ValueError, match=wrong):
            parse_signals(wrong)


@pytest.mark.parametrize(
    ("parse", "raw"),
    [
        (parse_boolean, "maybe"),
        (parse_boolean, 2),
        (integer(0), "-1"),
        (integer(0), "1.5"),
        (integer(0), True),
        (integer(0, 9), 10),
        (seconds(), "nan"),
        (seconds(), "inf"),
        (seconds(), 1e10),
        (seconds(), -1),
        (seconds(), True),
        (seconds(above=0), 0),
        (seconds_or_none, "never"),
        (seconds_or_none, "inf"),
        (seconds_or_none, "1e10"),
        (seconds_or_none, -1),
        (seconds_or_none, 0.05),
        (choice("a", "b"), "c"),
        (some_of("a", "b"), "a,c"),
        (some_of("a", "b"), ""),
        (some_of("a", "b"), True),
        (parse_log_level, "loud"),
        (parse_log_level, True),
        (parse_process_count, "0"),
        (parse_process_count, 0),
        (parse_process_count, "-2"),
        (parse_process_count, "99999999999999999999"),
        (parse_process_count, "two words"),
        (parse_process_count, True),
        (parse_text, 1.5),
        (parse_text, True),
        (parse_path, ""),
        (parse_path, 3),
    ],
)
def test_errors_name_expected_and_found_values(parse, raw):
    with pytest.raises(ValueError, match=r"expected .*, found"):
        parse(raw)


@given(st.floats(min_value=0, max_value=9e9, allow_nan=False, allow_infinity=False))
def test_seconds_survive_a_round_trip(duration):
    assert seconds()(repr(duration)) == duration == seconds()(duration)
    assert math.isfinite(seconds()(duration))


def test_keywords_and_natural_types_are_converted():
    assert parse_log_level("WARN") == "warning" == parse_log_level(30)
    assert parse_name_or_none("none") is None is parse_name_or_none(None)
    assert parse_name_or_none("file") == "file"
    assert [seconds_or_none(raw) for raw in ("none", "None", 0, "2.5", 3.0)] == [0.0, 0.0, 0.0, 2.5, 3.0]
    assert some_of("a", "b", "c")("c, a,a") == ("a", "c") == some_of("a", "b", "c")(("a", "c"))
    assert parse_process_count("gpu") == "gpu"
    assert parse_process_count("8") == 8
    assert parse_text(7) == "7"
    assert parse_path("~") == Path.home()
