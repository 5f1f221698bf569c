"""The contract of backends finds faults: each of these has one, and the test that is about it fails."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from elastic_testing import BackendContract, MemoryBackend, SharedMemory


class Faulty(MemoryBackend):
    """Everything right so far."""


class TakesAnyToken(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state, self._memory.token)


class TakesAnyFirstWrite(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state, self._memory.token if token is None else token)


class BytesAreItsTokens(Faulty):
    """A comparison of what stands, as `compare_set` of a store is."""

    def get_state(self):
        found = super().get_state()
        return None if found is None else (found[0], found[0])

    def set_state(self, state, token=None):
        before = self._memory.state
        told = super().set_state(state, before[1] if before and before[0] == token else token)
        return None if told is None else (told[0], told[0], told[2])


class TellsTheLoserThatItWon(Faulty):
    def set_state(self, state, token=None):
        told = super().set_state(state, token)
        return None if told is None else (*told[:2], True)


class DoesNotTellWhatStands(Faulty):
    def set_state(self, state, token=None):
        told = super().set_state(state, token)
        return told if told is None or told[2] else (state, token, False)


class StripsText(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state.strip(), token)


class TakesEmptyForNone(Faulty):
    def get_state(self):
        found = super().get_state()
        return found if found and found[0] else None


class LooksBeforeItLocks(Faulty):
    """Another one may write between the look and the write; here somebody always has the time to."""

    def set_state(self, state, token=None):
        standing = self._memory.token
        threading.Event().wait(0.001)
        if standing != token:
            return (*self._memory.state, False)
        return super().set_state(state, self._memory.token)


class Tears(Faulty):
    """Writes in two steps."""

    def set_state(self, state, token=None):
        told = super().set_state(state[: len(state) // 2] + b"?", token)
        if told is None or not told[2]:
            return told
        threading.Event().wait(0.001)
        self._memory.state = (state, told[1])
        return (state, *told[1:])


class BelongsToOneThread(Faulty):
    def __init__(self, memory):
        super().__init__(memory)
        self.thread = threading.get_ident()

    def _called(self, method):
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        super()._called(method)


class SaysSomethingElse(Faulty):
    def _called(self, method):
        if not self.reachable:
            raise ConnectionResetError("by peer")


class SeesNothingNew(Faulty):
    """A cache that nobody empties."""

    seen = None

    def get_state(self):
        self.seen = self.seen or super().get_state()
        return self.seen


class ForgetsTheOrder(Faulty):
    def roster(self):
        return tuple(sorted(super().roster(), key=lambda announced: announced.key))


class KeepsWhoWithdraws(Faulty):
    def withdraw(self, key):
        pass


class DoesNotBeat(Faulty):
    def beat(self, key, leading, look):
        lead = self._memory.lead
        return lead if leading or look else None


class ShowsTheDead(Faulty):
    """No beats, and no lease either."""

    def roster(self):
        return tuple(replace(announced, beats=None) for announced in super().roster())


class SleepsThroughTheState(Faulty):
    def wait_for_state(self, token, timeout):
        return self._wait(lambda: False, timeout)


class SleepsThroughTheRoster(Faulty):
    def wait_for_roster(self, timeout, more=1):
        return self._wait(lambda: False, timeout)


class WaitsForOneMore(Faulty):
    def wait_for_roster(self, timeout, more=1):
        return super().wait_for_roster(timeout, more + 1)


class DoesNotWakeOnClose(Faulty):
    def close(self):
        pass


class ClosesForAll(Faulty):
    def close(self):
        super().close()
        self._memory.state = None


class AsksNowAndThen(Faulty):
    """A push that is none."""

    def _asking(self, there):
        return self._wait(lambda: False, 0.5) or there()

    def wait_for_state(self, token, timeout):
        return self._asking(lambda: super(AsksNowAndThen, self).wait_for_state(token, 0.0))

    def wait_for_roster(self, timeout, more=1):
        return self._asking(lambda: super(AsksNowAndThen, self).wait_for_roster(0.0, more))


class BeginsToListenTooLate(Faulty):
    """It looks, and then listens for what comes from then on: what comes in between is missed."""

    def _late(self, wait, marker, timeout):
        if wait(0.0):
            return True
        threading.Event().wait(0.002)
        then = marker()
        return self._wait(lambda: marker() != then, timeout)

    def wait_for_state(self, token, timeout):
        wait = super().wait_for_state
        return self._late(lambda longest: wait(token, longest), lambda: self._memory.writes, timeout)

    def wait_for_roster(self, timeout, more=1):
        return self._late(super().wait_for_roster, lambda: self._memory.rosters, timeout)


class AlwaysTellsOfAState(Faulty):
    def wait_for_state(self, token, timeout):
        return True


class AlwaysTellsOfARoster(Faulty):
    def wait_for_roster(self, timeout, more=1):
        super().wait_for_roster(timeout, more)
        return True


class BeginsToCountAnew(SharedMemory):
    def forget(self):
        super().forget()
        self._lost_writes = 0


class CountsItsWrites(Faulty):
    """In the store, which forgets that too."""

    memory = BeginsToCountAnew


class RemembersTheState(Faulty):
    seen = None

    def get_state(self):
        self.seen = super().get_state() or self.seen
        return self.seen


class BeatsWithoutAnEntry(Faulty):
    def beat(self, key, leading, look):
        return super().beat(key, leading, look) if key in self._memory.entries else None


class SleepsThroughTheLoss(Faulty):
    def wait_for_state(self, token, timeout):
        return self._wait(lambda: self._memory.token not in (None, token), timeout)


EMPTY = "test_old_token_is_invalid_after_data_loss"
FAULTS = [
    (TakesAnyToken, "test_old_tokens_never_write"),
    (TakesAnyToken, "test_one_of_concurrent_writes_wins"),
    (TakesAnyFirstWrite, "test_second_first_write_is_refused"),
    (TakesAnyFirstWrite, "test_one_of_concurrent_writes_wins"),
    (BytesAreItsTokens, "test_rewritten_state_gets_new_token"),
    (BytesAreItsTokens, "test_every_write_has_unique_token"),
    (TellsTheLoserThatItWon, "test_only_one_of_two_equal_writes_succeeds"),
    (DoesNotTellWhatStands, "test_second_first_write_is_refused"),
    (StripsText, "test_bytes_are_kept_exactly"),
    (TakesEmptyForNone, "test_bytes_are_kept_exactly"),
    (LooksBeforeItLocks, "test_concurrent_increments_are_all_kept"),
    (LooksBeforeItLocks, "test_one_of_concurrent_writes_wins"),
    (Tears, "test_reads_are_never_torn"),
    (BelongsToOneThread, "test_calls_from_different_threads_work"),
    (SaysSomethingElse, "test_state_calls_report_lost_store"),
    (SaysSomethingElse, "test_roster_calls_report_lost_store"),
    (SeesNothingNew, "test_two_clients_alternate_writes"),
    (ForgetsTheOrder, "test_roster_is_in_order_of_first_announcement"),
    (KeepsWhoWithdraws, "test_withdrawn_entry_disappears_and_can_return"),
    (DoesNotBeat, "test_heartbeat_counter_grows_or_is_hidden"),
    (DoesNotBeat, "test_leader_counter_grows_and_is_readable"),
    (ShowsTheDead, "test_lease_drops_entry_of_dead_node"),
    (SleepsThroughTheState, "test_state_wait_with_stale_token_returns_immediately"),
    (SleepsThroughTheRoster, "test_roster_wait_includes_changes_since_last_read"),
    (WaitsForOneMore, "test_roster_wait_for_several_changes_returns"),
    (DoesNotWakeOnClose, "test_close_ends_waits"),
    (AsksNowAndThen, "test_changes_are_pushed_promptly"),
    (BeginsToListenTooLate, "test_state_change_during_wait_setup_is_seen"),
    (BeginsToListenTooLate, "test_roster_change_during_wait_setup_is_seen"),
    (AlwaysTellsOfAState, "test_waits_last_without_changes"),
    (AlwaysTellsOfARoster, "test_waits_last_without_changes"),
    (CountsItsWrites, EMPTY),
    (RemembersTheState, EMPTY),
    (BeatsWithoutAnEntry, "test_entries_are_restored_after_data_loss"),
    (SleepsThroughTheLoss, "test_entries_are_restored_after_data_loss"),
    (ClosesForAll, "test_close_does_not_affect_other_clients"),
]


class Contract(BackendContract):
    """As a plugin would write it."""

    __test__ = False

    def __init__(self, kind):
        self.kind = kind
        self.memory = getattr(kind, "memory", SharedMemory)()

    def peer(self, backend):
        return self.kind(self.memory)

    def forget(self, backend):
        self.memory.forget()

    def lose(self, backend):
        backend.reachable = False


class Hurried(Contract):
    """For backends with a fault: what hangs is found out sooner."""

    lease = at_once = 0.3
    pushed = 0.2


@pytest.mark.parametrize("kind, test", FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_is_found(kind, test):
    contract = Hurried(kind)
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        getattr(contract, test)(contract.peer(None))


@pytest.mark.parametrize("test", sorted({test for _, test in FAULTS}))
def test_what_has_no_fault_passes(test):
    contract = Contract(Faulty)
    getattr(contract, test)(contract.peer(None))
