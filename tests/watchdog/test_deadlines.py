"""The table of timers, compared with a naive model."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.clock import Instant
from elastic_core.watchdog.deadlines import Deadlines, Timer


class NaiveDeadlines:
    """A list that is searched each time."""

    def __init__(self):
        self.timers = []

    def acquire(self, timer):
        self.release(timer.pid, timer.scope)
        self.timers.append(timer)

    def release(self, pid, scope):
        self.timers = [timer for timer in self.timers if (timer.pid, timer.scope) != (pid, scope)]

    def forget(self, unwanted):
        self.timers = [timer for timer in self.timers if timer.pid not in unwanted]

    def expired(self, now):
        due = sorted((timer for timer in self.timers if timer.deadline <= now), key=lambda timer: timer.deadline)
        self.timers = [timer for timer in self.timers if timer.deadline > now]
        return due

    def next_deadline(self):
        return min((timer.deadline for timer in self.timers), default=None)


def timer(pid=1, scope="a", deadline=10.0, about=None):
    return Timer(pid, scope, Instant(deadline), about)


PIDS = st.integers(1, 3)
SCOPES = st.sampled_from("ab")
STEPS = st.one_of(
    st.tuples(st.just("acquire"), PIDS, SCOPES, st.integers(0, 20)),
    st.tuples(st.just("release"), PIDS, SCOPES),
    st.tuples(st.just("forget"), st.sets(PIDS)),
    st.tuples(st.just("expired"), st.integers(0, 20)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_table_matches_the_naive_model(steps):
    table, naive = Deadlines(), NaiveDeadlines()
    for number, (step, *arguments) in enumerate(steps):
        if step == "acquire":
            pid, scope, deadline = arguments
            # Distinct deadlines make the order unique.
            arguments = [Timer(pid, scope, Instant(deadline + number / 100), number)]
        assert getattr(table, step)(*arguments) == getattr(naive, step)(*arguments)
        assert table.next_deadline() == naive.next_deadline()
        assert len(table) == len(naive.timers)
        assert table.pids() == {timer.pid for timer in naive.timers}


def test_released_timers_use_no_memory():
    table = Deadlines()
    tracemalloc.start()
    for number in range(20_000):
        table.acquire(timer(scope="step", deadline=1e9 + number))
        table.release(1, "step")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000
