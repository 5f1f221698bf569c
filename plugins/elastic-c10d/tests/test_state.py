"""Conditional writes of the state, over every kind of store."""

from __future__ import annotations


def test_repeated_write_after_a_lost_answer_succeeds(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"1")
    done = backend.set_state(b"2", token)
    assert backend.set_state(b"2", token) == done


def test_reader_skips_to_the_newest_state(backends):
    writer, reader = backends(), backends()
    _, token, _ = writer.set_state(b"0")
    assert reader.get_state() == (b"0", token)
    for number in range(1, 40):
        _, token, _ = writer.set_state(str(number).encode(), token)
    assert reader.get_state() == (b"39", token)


def test_token_of_a_future_version_is_refused(backends):
    first, second = backends(), backends()
    _, token, _ = first.set_state(b"1")
    ahead = token._replace(number=9)
    assert second.set_state(b"2", ahead) == (b"1", token, False)


def test_token_of_a_previous_epoch_is_refused(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"1")
    assert backend.set_state(b"2", token._replace(epoch="before")) == (b"1", token, False)
    assert backend.wait_for_state(token._replace(epoch="before"), 20)
