"""Conditional writes of the state, over every kind of store."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError


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


def test_close_ends_waits_immediately(backends, background, eventually):
    backend = backends()
    backend.get_state()
    waits = [background(lambda: backend.wait_for_state(None, 20)), background(lambda: backend.wait_for_roster(20))]
    backend.get_state()
    backend.close()
    for waiting in waits:
        assert waiting.result() is False
    backend.close()
    assert backend.wait_for_state(None, 20) is False
    with pytest.raises(RendezvousConnectionError, match="closed by this side"):
        backend.get_state()
