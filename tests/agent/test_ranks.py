"""Ranks of workers, compared with a model that lists all workers and looks each one up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent import Worker
from elastic_core.agent.link import ranked_workers
from elastic_core.interfaces.node import Member


def member(role, size):
    return Member("", "", "", role, size)


def naive_ranks(members, group_rank):
    all_workers = [
        (rank, member.role, local) for rank, member in enumerate(members) for local in range(member.local_world_size)
    ]
    role = members[group_rank].role
    same_role = [worker for worker in all_workers if worker[1] == role]
    own = [worker for worker in all_workers if worker[0] == group_rank]
    return [
        Worker(worker[2], all_workers.index(worker), same_role.index(worker), len(all_workers), len(same_role))
        for worker in own
    ]


@given(st.lists(st.builds(member, st.sampled_from(["trainer", "reader", "actor"]), st.integers(1, 5)), min_size=1))
def test_ranks_match_the_model(members):
    for group_rank in range(len(members)):
        assert list(map(vars, ranked_workers(members, group_rank))) == list(map(vars, naive_ranks(members, group_rank)))
