"""The state behind its fence, over every kind of store."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError


def test_a_new_job_has_no_state(backends):
    assert backends().get_state() is None


def test_what_one_writes_the_other_reads(backends):
    writer, reader = backends(), backends()
    state, token, written = writer.set_state(b"\x00\xff any bytes: {}")
    assert written
    assert reader.get_state() == (state, token) == (b"\x00\xff any bytes: {}", token)


def test_an_empty_state_is_a_state(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"")
    assert backend.get_state() == (b"", token)


@pytest.mark.parametrize("same", [b"mine", b"yours"])
def test_of_two_writers_one_wins_even_if_both_write_the_same(backends, same):
    first, second = backends(), backends()
    won = first.set_state(b"mine")
    lost = second.set_state(same)
    assert (won[2], lost[2]) == (True, False)
    assert lost[:2] == won[:2]


def test_a_writer_that_has_not_read_the_newest_is_refused_and_told(backends):
    first, second = backends(), backends()
    _, token, _ = first.set_state(b"1")
    _, newer, _ = second.set_state(b"2", token)
    assert first.set_state(b"late", token) == (b"2", newer, False)
    assert first.set_state(b"late") == (b"2", newer, False)


def test_a_write_that_is_repeated_since_its_answer_was_lost_has_succeeded(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"1")
    done = backend.set_state(b"2", token)
    assert backend.set_state(b"2", token) == done


def test_an_old_writer_never_succeeds_however_long_it_slept(backends):
    sleeper, others = backends(), backends()
    _, token, _ = sleeper.set_state(b"0")
    newest = token
    for number in range(1, 60):
        _, newest, written = others.set_state(str(number).encode(), newest)
        assert written
    assert sleeper.set_state(b"from the past", token) == (b"59", newest, False)
    assert backends().get_state() == (b"59", newest)


def test_a_reader_finds_the_newest_from_wherever_it_stopped(backends):
    writer, reader = backends(), backends()
    _, token, _ = writer.set_state(b"0")
    assert reader.get_state() == (b"0", token)
    for number in range(1, 40):
        _, token, _ = writer.set_state(str(number).encode(), token)
    assert reader.get_state() == (b"39", token)


def test_a_token_for_a_version_that_is_not_there_is_refused(backends):
    first, second = backends(), backends()
    _, token, _ = first.set_state(b"1")
    ahead = token._replace(number=9)
    assert second.set_state(b"2", ahead) == (b"1", token, False)


def test_a_token_of_another_life_of_the_store_is_refused(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"1")
    assert backend.set_state(b"2", token._replace(epoch="before")) == (b"1", token, False)
    assert backend.wait_for_state(token._replace(epoch="before"), 20)


def test_jobs_in_one_store_do_not_see_each_other(backends):
    backends("one").set_state(b"1")
    assert backends("two").get_state() is None


def test_waiting_ends_when_the_state_changes(backends, background):
    writer, waiter = backends(), backends()
    waiter.get_state()
    waiting = background(lambda: waiter.wait_for_state(None, 20))
    _, token, _ = writer.set_state(b"1")
    assert waiting.result() is True
    assert waiter.get_state() == (b"1", token)
    waiting = background(lambda: waiter.wait_for_state(token, 20))
    writer.set_state(b"2", token)
    assert waiting.result() is True


def test_waiting_for_what_has_happened_ends_at_once(backends):
    writer, waiter = backends(), backends()
    _, token, _ = writer.set_state(b"1")
    writer.set_state(b"2", token)
    assert waiter.wait_for_state(token, 20)


def test_waiting_gives_up_in_time_and_can_be_repeated(backends):
    backend = backends()
    _, token, _ = backend.set_state(b"1")
    assert not backend.wait_for_state(token, 0.05)
    assert not backend.wait_for_state(token, 0.05)
    backend.set_state(b"2", token)
    assert backend.wait_for_state(token, 20)


def test_close_ends_waits_at_once(backends, background, eventually):
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
