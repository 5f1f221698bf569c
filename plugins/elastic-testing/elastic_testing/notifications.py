"""The contract for hooks that are notified of a running job's events, written as tests.

The test class for a plugin, for example:

class TestMyHooks(NotificationContract):
    options = {"pager": "http://localhost:1"}

    @pytest.fixture
    def plugin(self):
        return my_package.plugin  # the module or object that the entry point names
"""

from __future__ import annotations

import inspect
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    AgentFinished,
    AgentPhase,
    Context,
    Instant,
    Member,
    Outcome,
    PhaseChanged,
    ProcessFailure,
    Recovered,
    Recovery,
    RestartDecided,
    Round,
    RoundFormed,
    Settings,
    StopStatus,
    Verdict,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)
from elastic_testing.waiting import Background

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.plugin import Duration, Option


def smallest_facts() -> dict[str, Any]:
    """Return a fact for each hook that is notified, in the order of a short job with one worker."""
    return {
        "elastic_round_formed": RoundFormed("job", 1, 0, 1, 0.0, Round(1, (Member("", "", "", "", 1),))),
        "elastic_workers_started": WorkersStarted("job", 1, {0: 1}, {0: 0}),
        "elastic_worker_exited": WorkerExited("job", 1, 0, 0),
        "elastic_worker_failed": WorkerFailed("job", ProcessFailure(0, 1, 1)),
        "elastic_restart_decided": RestartDecided("job", 1, "membership", "", 0, 0),
        "elastic_phase_changed": PhaseChanged("job", AgentPhase.JOINING, "", Instant(0.0)),
        "elastic_recovered": Recovered("job", "", Recovery(2, "membership", "", 0.0, 0.0, 0.0, 0.0, 0.0)),
        "elastic_agent_finished": AgentFinished("job", "SUCCEEDED", "", 0),
    }


def largest_facts() -> dict[str, Any]:
    """Return a fact for each hook, of a job with 4096 nodes and texts that are long and hard to escape."""
    job, text = "j" * 200, 'a "b"\n\u2028 ä\x00 %s {}' + 10_000 * "x"
    members = tuple(Member(f"node{number}", f"host{number}", "fd00::1", "trainer", 512) for number in range(4096))
    data = {"message": {"message": text, "extraInfo": {"timestamp": "1700000000", "py_callstack": text}}}
    failure = ProcessFailure(
        511, 4_194_303, -9, "/tmp/error.json", text, 1.7e9, 2**21 - 1, "trainer", "node4095", 2**31, text, (text,) * 20,
        data, 0, False, text,
    )  # fmt: skip
    ended = Verdict(Outcome.RESTART, text, failed=True, failures={511: failure}, lost=True)
    ranks = {number: 2**21 - 512 + number for number in range(512)}
    stop = StopStatus(2**31, 2**40, 1.7e9, 1.7e9 + 60, tuple(range(256)), tuple(range(256, 512)))
    sign, now = Instant(1e9 - 60), Instant(1e9)
    return {
        "elastic_round_formed": RoundFormed(job, 2**31, 0, 4096, 1e6, Round(2**31, members, 10**6, text, ended)),
        "elastic_workers_started": WorkersStarted(job, 2**31, {rank: 4_194_303 - rank for rank in ranks}, ranks),
        "elastic_worker_exited": WorkerExited(job, 2**31, 511, -9, stopped=True),
        "elastic_worker_failed": WorkerFailed(job, failure),
        "elastic_restart_decided": RestartDecided(job, 2**31, "hang", text, 10**6, 10**6),
        "elastic_phase_changed": PhaseChanged(job, AgentPhase.DRAINING, text, now, sign, stop),
        "elastic_recovered": Recovered(job, "node4095", Recovery(2**31, "hang", text, 1.7e9, 1e6, 1e6, 1e6, 1e6)),
        "elastic_agent_finished": AgentFinished(job, "FAILED", text, 10**6),
    }


def _of_later_version(fact: Any) -> Any:
    """Return the fact with a field that this version does not have."""
    later = make_dataclass("Later", [("added_later", int, 7)], bases=(type(fact),), frozen=True)
    return later(**vars(fact))


class NotificationContract:
    """See the notification hooks in the reference of hooks. To use it with pytest, inherit from this class and define a
    fixture `plugin` that returns the module or object with the hooks. Each test calls all hooks once, on the node of
    rank 0.

    Attributes:
        options: values of the options that the plugin adds, instead of their defaults.
        limit: how many seconds the hooks may take together. The job waits for them.
    """

    options: Mapping[str, Any] = {}
    limit: Duration = 10.0

    def test_smallest_facts_are_accepted(self, plugin: Any) -> None:
        self._notify(plugin, smallest_facts())

    def test_largest_facts_are_accepted(self, plugin: Any) -> None:
        self._notify(plugin, largest_facts())

    def test_fields_of_later_versions_are_ignored(self, plugin: Any) -> None:
        self._notify(plugin, {hook: _of_later_version(fact) for hook, fact in smallest_facts().items()})

    def _notify(self, plugin: Any, facts: Mapping[str, Any]) -> None:
        called = {hook: fact for hook, fact in facts.items() if hasattr(plugin, hook)}
        assert called, "the plugin has no notification hook"
        added: Sequence[Option] = getattr(plugin, "elastic_add_options", list)()
        options = {**{option.name: option.default for option in added}, **self.options}
        context = Context("job", options, vars(Settings()))

        def notify() -> None:  # in one thread, as an agent does
            for hook, fact in called.items():
                function = getattr(plugin, hook)
                given = {"fact": fact, "context": context}
                returned = function(**{name: given[name] for name in inspect.signature(function).parameters})
                assert returned is None, f"{hook} returned {returned!r}"

        Background(notify).result(self.limit)
