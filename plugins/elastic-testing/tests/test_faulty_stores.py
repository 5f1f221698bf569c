"""StoreContract finds faults: each of these stores has one fault, and fails the corresponding test."""

from __future__ import annotations

import threading
import unittest
from datetime import timedelta

import pytest
from elastic_testing import StoreContract


def as_bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


class Memory:
    """A correct store in memory. `values` changes only under `changed`, and each change notifies all waiters."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition(threading.RLock())
        self.timeout = timedelta(seconds=60)

    def set_timeout(self, timeout):
        self.timeout = timeout

    def write(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def set(self, key, value):
        self.write(key, as_bytes(value))

    def get(self, key):
        self.wait([key])
        return self.values[key]

    def add(self, key, amount):
        with self.changed:
            number = int(self.values.get(key) or 0) + amount
            self.write(key, b"%d" % number)
            return number

    def append(self, key, value):
        with self.changed:
            self.write(key, self.values.get(key, b"") + as_bytes(value))

    def compare_set(self, key, expected, desired):
        with self.changed:
            if self.values.get(key, b"") == as_bytes(expected):
                self.write(key, as_bytes(desired))
            return self.values.get(key, as_bytes(expected))

    def wait(self, keys, timeout=None):
        seconds = (self.timeout if timeout is None else timeout).total_seconds()
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), seconds):
                raise TimeoutError(f"not all of {keys} were set")

    def check(self, keys):
        return self.values.keys() >= set(keys)

    def delete_key(self, key):
        with self.changed:
            self.changed.notify_all()
            return self.values.pop(key, None) is not None

    def num_keys(self):
        return len(self.values)

    def multi_set(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys):
        self.wait(keys)
        return [self.values[key] for key in keys]


class Polls(Memory):
    """Polls: a wait returns after half a second instead of immediately."""

    def wait(self, keys, timeout=None):
        for _ in range(round((timeout or self.timeout).total_seconds() / 0.25)):
            if self.check(keys):
                return
            threading.Event().wait(0.25)
        raise TimeoutError


class NotifiesNoWaiters(Memory):
    """Writes do not notify waiters, which find the keys only at their timeout."""

    def write(self, key, value):
        with self.changed:
            self.values[key] = value


class ChecksBeforeSubscribing(Memory):
    """A wait misses keys written between the check and the subscription."""

    def wait(self, keys, timeout=None):
        if not self.check(keys):
            threading.Event().wait(0.002)
            with self.changed:
                if not self.changed.wait((timeout or self.timeout).total_seconds()):
                    raise TimeoutError


class WakesOnAnyKey(Memory):
    def wait(self, keys, timeout=None):
        with self.changed:
            if not self.check(keys) and not self.changed.wait((timeout or self.timeout).total_seconds()):
                raise TimeoutError


class ForgetsWaitersOfDeletedKeys(Memory):
    def __init__(self):
        super().__init__()
        self.given_up = set()

    def delete_key(self, key):
        self.given_up.add(key)
        return super().delete_key(key)

    def wait(self, keys, timeout=None):
        with self.changed:
            self.given_up -= set(keys)
        super().wait(keys, timeout)

    def check(self, keys):
        return super().check(keys) and self.given_up.isdisjoint(keys)


class WaitsForOneKeyOnly(Memory):
    def wait(self, keys, timeout=None):
        super().wait(keys[:1], timeout)


class RoundsTimeoutsToSeconds(Memory):
    def wait(self, keys, timeout=None):
        super().wait(keys, timedelta(seconds=(timeout or self.timeout).seconds))


class IgnoresTheStoresTimeout(Memory):
    def wait(self, keys, timeout=None):
        super().wait(keys, timeout or timedelta(seconds=60))


class IgnoresTimeouts(Memory):
    def wait(self, keys, timeout=None):
        super().wait(keys, timedelta(seconds=60))


class ComparesAndThenSets(Memory):
    def compare_set(self, key, expected, desired):
        if self.values.get(key, b"") != as_bytes(expected):
            return self.values.get(key, as_bytes(expected))
        threading.Event().wait(0.02)  # long enough for another caller to compare as well
        self.write(key, as_bytes(desired))
        return as_bytes(desired)


class ReplacesWithoutComparing(ComparesAndThenSets):
    """Atomic only for an absent key."""

    def compare_set(self, key, expected, desired):
        if key not in self.values:
            return Memory.compare_set(self, key, expected, desired)
        return super().compare_set(key, expected, desired)


class ReturnsThePreviousValue(Memory):
    def compare_set(self, key, expected, desired):
        before = self.values.get(key, as_bytes(expected))
        super().compare_set(key, expected, desired)
        return before


class ReadsAndThenAdds(Memory):
    def add(self, key, amount):
        number = int(self.values.get(key) or 0)
        threading.Event().wait(0.001)
        self.write(key, b"%d" % (number + amount))
        return number + amount


class SeparatesCountersFromValues(Memory):
    """Counters and values are separate."""

    def __init__(self):
        super().__init__()
        self.counters = {}

    def add(self, key, amount):
        with self.changed:
            self.counters[key] = self.counters.get(key, 0) + amount
            self.write(key, b"%d" % self.counters[key])
            return self.counters[key]

    def delete_key(self, key):
        self.counters.pop(key, None)
        return super().delete_key(key)


class OverwritesTextWithACounter(Memory):
    def add(self, key, amount):
        with self.changed:
            if not self.values.get(key, b"0").lstrip(b"-").isdigit():
                self.values.pop(key)
            return super().add(key, amount)


class CachesCounters(Memory):
    """Caches counters per thread, which is correct only without other writers."""

    def __init__(self):
        super().__init__()
        self.counters = {}

    def add(self, key, amount):
        with self.changed:
            number = self.counters.get(key, (None, 0))
            if number[0] != threading.get_ident():
                number = (None, int(self.values.get(key) or 0))
            self.counters[key] = (threading.get_ident(), number[1] + amount)
            self.write(key, b"%d" % (number[1] + amount))
            return number[1] + amount

    def delete_key(self, key):
        self.counters.pop(key, None)
        return super().delete_key(key)

    def peer(self):
        other = CachesCounters()
        other.values, other.changed = self.values, self.changed
        return other


class KeepsCountersOfDeletedKeys(CachesCounters):
    """Caches counters per thread, even those of deleted keys."""

    def delete_key(self, key):
        return Memory.delete_key(self, key)


class IgnoresAdditionsOfZero(Memory):
    def add(self, key, amount):
        return super().add(key, amount) if amount else int(self.values.get(key) or 0)


class KeepsTheRestOfALongerValue(Memory):
    def set(self, key, value):
        self.write(key, as_bytes(value) + self.values.get(key, b"")[len(as_bytes(value)) :])


class TreatsEmptyAsPresent(Memory):
    def compare_set(self, key, expected, desired):
        if key in self.values and not expected:
            return self.values[key]
        return super().compare_set(key, expected, desired)


class StoresTextOnly(Memory):
    def write(self, key, value):
        super().write(key, value.decode(errors="replace").encode())


class StripsValues(Memory):
    def write(self, key, value):
        super().write(key, value.strip())


class ComparesText(Memory):
    def compare_set(self, key, expected, desired):
        with self.changed:
            if self.values.get(key, b"").decode(errors="ignore") == as_bytes(expected).decode(errors="ignore"):
                self.write(key, as_bytes(desired))
            return self.values.get(key, as_bytes(expected))


class ReadsAndThenAppends(Memory):
    def append(self, key, value):
        before = self.values.get(key, b"")
        threading.Event().wait(0.001)
        self.write(key, before + as_bytes(value))


class IgnoresDeletions(Memory):
    def delete_key(self, key):
        return key in self.values


class TreatsEmptyAsAbsent(Memory):
    def check(self, keys):
        return all(self.values.get(key) for key in keys)


FAULTS = [
    (Polls, "test_waiting_client_is_woken_without_polling"),
    (NotifiesNoWaiters, "test_every_kind_of_write_wakes_waiting_client"),
    (NotifiesNoWaiters, "test_wait_returns_when_all_keys_exist"),
    (ChecksBeforeSubscribing, "test_waiting_client_is_woken_without_polling"),
    (WakesOnAnyKey, "test_deletion_does_not_affect_wait"),
    (WakesOnAnyKey, "test_wait_returns_when_all_keys_exist"),
    (ForgetsWaitersOfDeletedKeys, "test_deletion_does_not_affect_wait"),
    (WaitsForOneKeyOnly, "test_wait_returns_when_all_keys_exist"),
    (WaitsForOneKeyOnly, "test_wait_times_out"),
    (RoundsTimeoutsToSeconds, "test_wait_times_out"),
    (RoundsTimeoutsToSeconds, "test_store_timeout_is_the_default"),
    (IgnoresTheStoresTimeout, "test_store_timeout_is_the_default"),
    (IgnoresTimeouts, "test_wait_times_out"),
    (ComparesAndThenSets, "test_one_of_concurrent_compare_sets_wins"),
    (ComparesAndThenSets, "test_compare_set_loses_no_increment"),
    (ReplacesWithoutComparing, "test_compare_set_loses_no_increment"),
    (ReturnsThePreviousValue, "test_compare_set_writes_if_value_matches"),
    (ReadsAndThenAdds, "test_concurrent_additions_are_all_counted"),
    (SeparatesCountersFromValues, "test_counters_are_decimal_text"),
    (SeparatesCountersFromValues, "test_add_sees_other_clients_writes"),
    (OverwritesTextWithACounter, "test_add_rejects_non_numeric_value"),
    (CachesCounters, "test_add_sees_other_clients_writes"),
    (KeepsCountersOfDeletedKeys, "test_counters_are_decimal_text"),
    (IgnoresAdditionsOfZero, "test_counters_are_decimal_text"),
    (KeepsTheRestOfALongerValue, "test_set_replaces_large_value"),
    (TreatsEmptyAsPresent, "test_compare_set_writes_if_value_matches"),
    (StoresTextOnly, "test_values_are_bytes"),
    (StoresTextOnly, "test_append_extends_value"),
    (StripsValues, "test_values_are_bytes"),
    (ComparesText, "test_compare_set_writes_if_value_matches"),
    (ReadsAndThenAppends, "test_concurrent_appends_are_all_kept"),
    (IgnoresDeletions, "test_delete_key_removes_key"),
    (TreatsEmptyAsAbsent, "test_check_reports_existing_keys"),
]


class Contract(StoreContract):
    """The contract as a plugin subclasses it."""

    __test__ = False

    def peer(self, store):
        return store.peer() if hasattr(store, "peer") else store


class Hurried(Contract):
    """Shorter limits, so that faulty stores fail sooner."""

    patience = 2.0


@pytest.mark.parametrize("kind, test", FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_fault_fails_its_contract_test(kind, test):
    with pytest.raises((AssertionError, TimeoutError)):
        getattr(Hurried(), test)(kind())


@pytest.mark.parametrize("test", [name for name in dir(Contract) if name.startswith("test_")])
def test_correct_store_passes(test):
    try:
        getattr(Contract(), test)(Memory())
    except unittest.SkipTest as skipped:
        pytest.fail(f"expected the whole contract, found that some is left out: {skipped}")
