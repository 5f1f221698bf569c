"""Random stories that are longer than the explorer's: production nodes over a store in which everything fails. `World`
checks every write; at the end, without faults, a round must form."""

from __future__ import annotations

import pytest
from elastic_testing import World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

MOST_NODES = 7


class Job(RuleBasedStateMachine):
    @initialize(
        bounds=st.sampled_from([(1, 2), (1, 4), (2, 2), (2, 3), (3, 5)]),
        count=st.integers(1, 4),
        seed=st.integers(0, 99),
        leases=st.booleans(),
    )
    def start(self, bounds, count, seed, leases):
        self.job = World(RendezvousSettings("job", *bounds, RendezvousTimeout(close=20)), seed, leases)
        self.begun = 0
        for _ in range(count):
            self.join()

    def names(self):
        return [node.name for node in self.job.nodes.values() if node.active]

    @precondition(lambda self: self.begun < MOST_NODES and self.names())
    @rule(data=st.data())
    def another_of_its_name_joins(self, data):
        """Like an agent that was started twice, or again while its old entry remains."""
        self.job.join(f"n{self.begun}", called=data.draw(st.sampled_from(list(self.job.nodes))))
        self.begun += 1

    def pick(self, data):
        return data.draw(st.sampled_from(self.names()))

    @precondition(lambda self: self.begun < MOST_NODES)
    @rule()
    def join(self):
        self.job.join(f"n{self.begun}")
        self.begun += 1

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.0, 3.0, 6.0, 11.0, 25.0]))
    def time_passes(self, seconds):
        self.job.run(seconds)

    @precondition(lambda self: self.names())
    @rule(data=st.data(), what=st.sampled_from(["crash", "leave", "succeed", "lose_answers"]))
    def something_happens(self, data, what):
        getattr(self.job, what)(self.pick(data))

    @precondition(lambda self: self.names())
    @rule(data=st.data(), certain=st.booleans())
    def fails(self, data, certain):
        self.job.fail(self.pick(data), certain)

    @precondition(lambda self: self.names())
    @rule(data=st.data(), frozen=st.booleans())
    def freezes(self, data, frozen):
        self.job.freeze(self.pick(data), frozen)

    @precondition(lambda self: self.names())
    @rule(data=st.data(), reachable=st.booleans())
    def is_cut_off(self, data, reachable):
        self.job.partition(self.pick(data), reachable)

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def is_drained(self, data):
        self.job.drain(self.pick(data), through=self.pick(data))

    @precondition(lambda self: self.names())
    @rule(data=st.data(), count=st.integers(1, 3))
    def gives_up_writes(self, data, count):
        """The writes are carried out later, or never."""
        self.job.delay_writes(self.pick(data), count)

    @rule()
    def late_writes_are_carried_out(self):
        self.job.catch_up()

    @rule(asleep=st.booleans())
    def the_store_sleeps_or_wakes(self, asleep):
        self.job.sleep(asleep)

    @precondition(lambda self: not self.job.sleeping and self.job.forgotten < 2)
    @rule()
    def the_store_forgets(self):
        self.job.forget()

    @precondition(lambda self: self.job.store.leases)
    @rule(data=st.data())
    def all_leases_end(self, data):
        """One after another, a moment apart."""
        for name in data.draw(st.permutations(self.names())):
            self.job.end_lease(name)
            self.job.run(data.draw(st.sampled_from([0.0, 0.01, 0.5])))

    def teardown(self):
        """End all faults: every live node must get its round."""
        if not hasattr(self, "job"):
            return
        for name in self.job.nodes:
            self.job.freeze(name, frozen=False)
            self.job.partition(name, reachable=True)
            self.job.lose_answers(name, 0)
            self.job.delay_writes(name, 0)
        self.job.sleep(asleep=False)
        self.job.catch_up()
        self.job.run(80)
        state = self.job.state
        if state.closed:
            assert not self.names(), f"the job is closed, and {self.names()} do not know"
        elif any(node.phase.name == "DONE" for node in self.job.nodes.values()) or self.job.ending:
            return  # no newcomer is admitted
        elif len(self.names()) >= self.job.settings.min_nodes:
            assert self.job.in_step(), f"{self.names()} live, and {self.job.members()} are in round {state.round}"


TestRandomWorlds = Job.TestCase
TestRandomWorlds.settings = settings(max_examples=40, stateful_step_count=25)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
class TestManyRandomWorlds(Job.TestCase):
    settings = settings(max_examples=1500, stateful_step_count=25)
