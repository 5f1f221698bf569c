"""BackendContract finds faults: each of these backends has one fault, and fails the corresponding test."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from elastic_testing import BackendContract, MemoryBackend, SharedMemory


class Faulty(MemoryBackend):
    """A correct backend; subclasses add a fault."""


class AcceptsAnyToken(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state, self._memory.token)


class AcceptsAnyFirstWrite(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state, self._memory.token if token is None else token)


class UsesBytesAsTokens(Faulty):
    """Compares stored bytes, like `compare_set` of a store."""

    def get_state(self):
        found = super().get_state()
        return None if found is None else (found[0], found[0])

    def set_state(self, state, token=None):
        before = self._memory.state
        answer = super().set_state(state, before[1] if before and before[0] == token else token)
        return None if answer is None else (answer[0], answer[0], answer[2])


class ComparesBytesOfUniqueTokens(Faulty):
    """Returns a unique token for each write, but compares only the bytes that were written."""

    def get_state(self):
        found = super().get_state()
        return None if found is None else (found[0], found)

    def set_state(self, state, token=None):
        before = self._memory.state
        matches = before is not None and isinstance(token, tuple) and token[0] == before[0]
        answer = super().set_state(state, before[1] if matches else token)
        return None if answer is None else (answer[0], answer[:2], answer[2])


class RenewsTokensAtEachRead(Faulty):
    """Returns another valid token for an unchanged state. Does not report whether a write succeeded."""

    reads = 0

    def get_state(self):
        found = super().get_state()
        self.reads += 1
        return None if found is None else (found[0], (found[1], self.reads))

    def set_state(self, state, token=None):
        super().set_state(state, token[0] if isinstance(token, tuple) else token)


class SeesOnlyStatesOfItsTime(Faulty):
    """Finds no state that was written before it was created."""

    def __init__(self, memory):
        super().__init__(memory)
        self.created = memory.writes

    def get_state(self):
        found = super().get_state()
        return found if found and found[1] > self.created else None


class ReportsSuccessToTheLoser(Faulty):
    def set_state(self, state, token=None):
        answer = super().set_state(state, token)
        return None if answer is None else (*answer[:2], True)


class ReturnsTheRefusedState(Faulty):
    def set_state(self, state, token=None):
        answer = super().set_state(state, token)
        return answer if answer is None or answer[2] else (state, token, False)


class StripsText(Faulty):
    def set_state(self, state, token=None):
        return super().set_state(state.strip(), token)


class TreatsEmptyAsNone(Faulty):
    def get_state(self):
        found = super().get_state()
        return found if found and found[0] else None


class ChecksBeforeLocking(Faulty):
    """Another client can write between the check and the write; the pause makes that certain."""

    def set_state(self, state, token=None):
        standing = self._memory.token
        threading.Event().wait(0.001)
        if standing != token:
            return (*self._memory.state, False)
        return super().set_state(state, self._memory.token)


class WritesInTwoSteps(Faulty):
    """Writes in two steps."""

    def set_state(self, state, token=None):
        answer = super().set_state(state[: len(state) // 2] + b"?", token)
        if answer is None or not answer[2]:
            return answer
        threading.Event().wait(0.001)
        self._memory.state = (state, answer[1])
        return (state, *answer[1:])


class WorksInOneThreadOnly(Faulty):
    def __init__(self, memory):
        super().__init__(memory)
        self.thread = threading.get_ident()

    def _called(self, method):
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        super()._called(method)


class RaisesAnotherError(Faulty):
    def _called(self, method):
        if not self.reachable:
            raise ConnectionResetError("by peer")


class NeverRefreshes(Faulty):
    """A cache that is never invalidated."""

    seen = None

    def get_state(self):
        self.seen = self.seen or super().get_state()
        return self.seen


class SortsTheRoster(Faulty):
    def roster(self):
        return tuple(sorted(super().roster(), key=lambda announced: announced.key))


class IgnoresWithdrawals(Faulty):
    def withdraw(self, key):
        pass


class WithdrawsOnlyItsOwnEntry(Faulty):
    own = None

    def announce(self, key, entry):
        self.own = key
        return super().announce(key, entry)

    def withdraw(self, key):
        if key == self.own:
            super().withdraw(key)


class SendsNoHeartbeat(Faulty):
    def beat(self, key, leading, look):
        lead = self._memory.lead
        return lead if leading or look else None


class ListsDeadNodes(Faulty):
    """Neither heartbeats nor leases."""

    def roster(self):
        return tuple(replace(announced, beats=None) for announced in super().roster())


class MissesStateChanges(Faulty):
    def wait_for_state(self, token, timeout):
        return self._wait(lambda: False, timeout)


class MissesRosterChanges(Faulty):
    def wait_for_roster(self, timeout, more=1):
        return self._wait(lambda: False, timeout)


class WaitsForOneEntryTooMany(Faulty):
    def wait_for_roster(self, timeout, more=1):
        return super().wait_for_roster(timeout, more + 1)


class DoesNotWakeOnClose(Faulty):
    def close(self):
        pass


class ClosesAllClients(Faulty):
    def close(self):
        super().close()
        self._memory.state = None


class Polls(Faulty):
    """Polls instead of pushing."""

    def _asking(self, there):
        return self._wait(lambda: False, 0.5) or there()

    def wait_for_state(self, token, timeout):
        return self._asking(lambda: super(Polls, self).wait_for_state(token, 0.0))

    def wait_for_roster(self, timeout, more=1):
        return self._asking(lambda: super(Polls, self).wait_for_roster(0.0, more))


class SubscribesTooLate(Faulty):
    """Reads first and subscribes afterwards, and so misses changes in between."""

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


class IgnoresTimeouts(Faulty):
    def wait_for_state(self, token, timeout):
        return super().wait_for_state(token, timeout + 1.0)


class AlwaysReportsAState(Faulty):
    def wait_for_state(self, token, timeout):
        return True


class AlwaysReportsARoster(Faulty):
    def wait_for_roster(self, timeout, more=1):
        super().wait_for_roster(timeout, more)
        return True


class RestartsItsCount(SharedMemory):
    def forget(self):
        super().forget()
        self._lost_writes = 0


class CountsWritesInTheStore(Faulty):
    """Counts writes in the store, which loses the count with its data."""

    memory = RestartsItsCount


class KeepsALostState(Faulty):
    seen = None

    def get_state(self):
        self.seen = super().get_state() or self.seen
        return self.seen


class AcceptsHeartbeatsWithoutAnEntry(Faulty):
    def beat(self, key, leading, look):
        return super().beat(key, leading, look) if key in self._memory.entries else None


class MissesTheLossOfData(Faulty):
    def wait_for_state(self, token, timeout):
        return self._wait(lambda: self._memory.token not in (None, token), timeout)


EMPTY = "test_old_token_is_invalid_after_data_loss"
FAULTS = [
    (AcceptsAnyToken, "test_old_tokens_never_write"),
    (AcceptsAnyToken, "test_one_of_concurrent_writes_wins"),
    (AcceptsAnyFirstWrite, "test_second_first_write_is_refused"),
    (AcceptsAnyFirstWrite, "test_one_of_concurrent_writes_wins"),
    (UsesBytesAsTokens, "test_old_tokens_never_write"),
    (ComparesBytesOfUniqueTokens, "test_old_tokens_never_write"),
    (RenewsTokensAtEachRead, "test_second_first_write_is_refused"),
    (SeesOnlyStatesOfItsTime, "test_later_client_finds_state"),
    (ReportsSuccessToTheLoser, "test_only_one_of_two_equal_writes_succeeds"),
    (ReturnsTheRefusedState, "test_second_first_write_is_refused"),
    (StripsText, "test_bytes_are_kept_exactly"),
    (TreatsEmptyAsNone, "test_bytes_are_kept_exactly"),
    (ChecksBeforeLocking, "test_concurrent_increments_are_all_kept"),
    (ChecksBeforeLocking, "test_one_of_concurrent_writes_wins"),
    (WritesInTwoSteps, "test_reads_are_never_torn"),
    (WorksInOneThreadOnly, "test_calls_from_different_threads_work"),
    (RaisesAnotherError, "test_state_calls_report_lost_store"),
    (RaisesAnotherError, "test_roster_calls_report_lost_store"),
    (NeverRefreshes, "test_two_clients_alternate_writes"),
    (SortsTheRoster, "test_roster_is_in_order_of_first_announcement"),
    (IgnoresWithdrawals, "test_withdrawn_entry_disappears_and_can_return"),
    (WithdrawsOnlyItsOwnEntry, "test_withdrawn_node_notices_when_it_sends_heartbeats"),
    (SendsNoHeartbeat, "test_heartbeat_counter_grows_or_is_hidden"),
    (SendsNoHeartbeat, "test_leader_counter_grows_and_is_readable"),
    (ListsDeadNodes, "test_lease_drops_entry_of_dead_node"),
    (MissesStateChanges, "test_state_wait_with_stale_token_returns_immediately"),
    (MissesRosterChanges, "test_roster_wait_includes_changes_since_last_read"),
    (WaitsForOneEntryTooMany, "test_roster_wait_for_several_changes_returns"),
    (DoesNotWakeOnClose, "test_close_ends_waits"),
    (Polls, "test_changes_are_pushed_promptly"),
    (SubscribesTooLate, "test_state_change_during_wait_setup_is_seen"),
    (SubscribesTooLate, "test_roster_change_during_wait_setup_is_seen"),
    (IgnoresTimeouts, "test_waits_last_without_changes"),
    (AlwaysReportsAState, "test_waits_last_without_changes"),
    (AlwaysReportsARoster, "test_waits_last_without_changes"),
    (CountsWritesInTheStore, EMPTY),
    (KeepsALostState, EMPTY),
    (AcceptsHeartbeatsWithoutAnEntry, "test_entries_are_restored_after_data_loss"),
    (AcceptsHeartbeatsWithoutAnEntry, "test_withdrawn_node_notices_when_it_sends_heartbeats"),
    (MissesTheLossOfData, "test_entries_are_restored_after_data_loss"),
    (ClosesAllClients, "test_close_does_not_affect_other_clients"),
]


class Hurried(BackendContract):
    """The contract as a plugin subclasses it. Shorter limits let faulty backends fail sooner."""

    __test__ = False
    lease = at_once = 0.3
    pushed = 0.2

    def __init__(self, kind):
        self.kind = kind
        self.memory = getattr(kind, "memory", SharedMemory)()

    def peer(self, backend):
        return self.kind(self.memory)

    def forget(self, backend):
        self.memory.forget()

    def lose(self, backend):
        backend.reachable = False


@pytest.mark.parametrize("kind, test", FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_fault_fails_its_contract_test(kind, test):
    contract = Hurried(kind)
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        getattr(contract, test)(contract.peer(None))
