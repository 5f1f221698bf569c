"""One node's part in the rendezvous: its knowledge, its goals and its next operation. It does no I/O, and has no clock,
threads or randomness; the driver calls it, and passes the time on this machine's monotonic clock as `now`. The node is
level-triggered: after a lost answer, an outage or a refused write, it reads what is stored and continues from there.
`design/rendezvous.md` explains both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.errors import (
    ConfigurationError,
    ElasticError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.backend import EntryDroppedError, ForeignStateError
from elastic_core.rendezvous import messages, model
from elastic_core.rendezvous.codec import bounded
from elastic_core.rendezvous.connection import Connection, Remedy, Repair
from elastic_core.rendezvous.effects import (
    Announce,
    ChangeState,
    HandOver,
    Heartbeat,
    Idle,
    LogLine,
    ReadRoster,
    ReadState,
    RefreshRoster,
    Retire,
    Withdraw,
    WriteState,
)
from elastic_core.rendezvous.election import Election, ordered_by_age, position
from elastic_core.rendezvous.model import (
    NO_ROUND,
    Cause,
    JoinStatus,
    Report,
    Reported,
    State,
    drained,
    join_status,
    missed,
    verdict,
)
from elastic_core.rendezvous.policy import Wait, Write, decide, enough, is_certain, with_reports
from elastic_core.rendezvous.roster import Observation, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import Token
    from elastic_core.interfaces.handler import RendezvousStoreInfo, Verdict
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.log import EventName
    from elastic_core.rendezvous.effects import Operation, Request
    from elastic_core.rendezvous.model import Entry, RoundId, Seat
    from elastic_core.rendezvous.policy import Decision
    from elastic_core.rendezvous.roster import Registration
    from elastic_core.rendezvous.settings import RendezvousSettings

_IDLE: Duration = 5.0  # the longest rest for a node that wants nothing
_HEARD: Duration = 0.5  # how long a node waits for the leader to write its report, per place in the succession order
_MOST_PLACES = 4
_ATTEMPTS = 3  # the number of refused writes after which a leaving node stops trying to write its own departure
_AFTER: Duration = 0.01  # requests are retried slightly later than everything else, so as not to block it


@dataclass(frozen=True)
class Membership:
    """A node's part in the job.

    Args:
        round: the node's current or last round.
        formed: the state when that round formed; None before the first round.
        running: whether the node is in a round.
        done: whether the node's workers have succeeded.
        joins: whether the node wants a round.
        join_by: when the node stops waiting for a round to form.
        contact_by: when the node stops waiting for the store's first answer.
        was_closed: whether the job was already closed when the node asked for its first round.
        cut_off: whether the node is stopping its workers because it could not reach the store.
        left: why the node has left the job; empty if it has not.
        shut: whether the node's handler has been shut down.
    """

    round: RoundId = NO_ROUND
    formed: State | None = None
    running: bool = False
    done: bool = False
    joins: bool = False
    join_by: Instant = LONG_AGO
    contact_by: Instant = LONG_AGO
    was_closed: bool = False
    cut_off: bool = False
    left: str = ""
    shut: bool = False


class Node:
    """One node of the job. All attributes are immutable values, so that a shallow copy of a node is an independent
    node.

    Args:
        entry: the entry that this node announces before its first round.

    Attributes:
        state, token: the state that was last read, and the token of its write; None before the first read.
        registered: this node's entry in the store; None if, as far as the node knows, it has no entry there.
        entry: the entry that should be in the store.
        lingers: whether the node hosts the store of a finished job while other nodes still use that store.
        gathering: what the next round was waiting for when this node last checked; None if it has not checked.
        fault: the last fault other than an outage; reset to None when the node has nothing left to do.
    """

    def __init__(self, entry: Entry, settings: RendezvousSettings) -> None:
        self.key = entry.key
        self.settings = settings
        # The state, whether it may have changed, and the state to write back into a store that has lost it.
        self.state: State | None = None
        self.token: Token | None = None
        self._state_stale = True
        self._to_give_back: tuple[State, Token | None] | None = None
        self._give_back_at = LONG_AGO
        self.repair = Repair(settings)
        # Three versions of this node's entry: the entry that should be stored (if the node registers), the entry that
        # is stored, and the entry that was stored before an outage.
        self.entry = entry
        self._registers = False
        self.registered: Entry | None = None
        self._stored_before: Entry | None = None
        self._may_be_stored = False
        self._rounds_formed = 0
        self._reports = 0
        self._beat_at = LONG_AGO
        self._beats = 0
        # What this node sees of the other nodes, and the conclusions that it draws.
        self.seen = Observation.of(settings)
        self._roster_stale = True
        self._enough: tuple[RoundId, Instant] | None = None
        self._decision: Decision | None = None
        self._decide_at: Instant | None = None
        self.gathering: Wait | None = None
        self.election = Election(settings)
        self.membership = Membership()
        self.lingers = False
        # Pending requests, and the outcomes of completed requests.
        self._requests: tuple[Request, ...] = ()
        self._looks: tuple[RefreshRoster, ...] = ()
        self._looking: tuple[RefreshRoster, ...] = ()
        self._requests_at = LONG_AGO
        self._request_fails_since: Instant | None = None
        self._refusals = 0
        self._reported_at = LONG_AGO
        self._settled: tuple[tuple[Request, Exception | None], ...] = ()
        # The current operation, and faults.
        self._asked: Operation | None = None
        self._asked_for = ""
        self._answers = False
        self.connection = Connection(settings)
        self.fault: Exception | None = None
        self._notes: tuple[LogLine, ...] = ()

    # -- calls from the agent

    def begin(self, now: Instant) -> None:
        """Start joining on the agent's behalf. The node waits up to `join_timeout` for a round."""
        join_by = later(now, self.settings.timeout.join.total_seconds())
        contact_by = later(now, self.settings.first_contact[0])
        self.membership = replace(
            self.membership, running=False, joins=False, done=False, join_by=join_by, contact_by=contact_by
        )

    def want(self, where: RendezvousStoreInfo, unreachable: Sequence[str] = (), lifeline: int = 0) -> None:
        """Request a round newer than the last one. If this node gets rank 0, `where` is the address of the workers'
        store. `unreachable` lists keys of members of the last round that this node cannot reach. For `lifeline`, see
        `Entry`."""
        if self.membership.left or self.membership.shut:
            return
        self._give_up_round()
        was_closed = not self.membership.round and self.state is not None and self.state.closed is not None
        self.membership = replace(self.membership, joins=True, cut_off=False, was_closed=was_closed)
        self._registers = True
        reported = self.entry.reported
        self.entry = replace(
            self.entry,
            after=self.membership.round,
            waits=True,
            done=NO_ROUND,
            reported=reported if reported is not None and reported.round == self.membership.round else None,
            address=where.master_addr,
            port=where.master_port,
            unreachable=tuple(unreachable),
            lifeline=lifeline,
            stop=None,
        )
        if self._state_stale or self.connection.outage is not None:
            self._catch_up()  # the node reads the state again before it takes part in a round
        else:
            self._follow()
        self._hurry()

    def _give_up_round(self) -> None:
        """End this node's last round if it is still running when the node asks for a new one. Programs written for
        torch's handlers ask in the middle of a round, because they never report failures. If the round is over, this
        has no effect unless the node was cut off."""
        name, round_id, cut_off = self.entry.node, self.membership.round, self.membership.cut_off
        if round_id:
            reason = f"{name} was cut off from the store" if cut_off else f"{name} wants a new round"
            cause = Cause.LOST if cut_off else Cause.LEFT
            self.request(ChangeState(_given_up, (self.key, round_id, cause, name, reason)))

    def reaches(self, unreachable: Sequence[str]) -> None:
        """Update the list of members that the agent could not reach in its latest check."""
        self.entry = replace(self.entry, unreachable=tuple(unreachable))
        self._hurry()

    def step_back(self) -> None:
        """Stop joining, because the agent has given up."""
        self.membership = replace(self.membership, joins=False, running=False)
        self._retire()

    def fail(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Report that workers of this node have failed."""
        shown = tuple(bounded(failure) for failure in failures.values())
        self._reports += 1
        report = Report(self.key, self.entry.node, shown, is_certain(failures), self._reports)
        self.request(ChangeState(model.failed, (self.membership.round, report), {"failure": report}))

    def report_stop(self, stop: StopStatus) -> None:
        """Report which workers of this node have saved."""
        self.entry = replace(self.entry, stop=stop)
        self._hurry()

    def succeed(self) -> None:
        """Report that all workers of this node succeeded."""
        self.membership = replace(self.membership, done=True)
        if not self.membership.left:
            self.entry = replace(self.entry, done=self.membership.round)
            self._hurry()

    def leave(self, reason: str) -> Request:
        """Leave the job for good, and stop joining. The node's entry stays in the store while the node's workers may be
        running, because other nodes wait for the workers to stop. Returns a request that is settled as soon as other
        nodes can learn of the departure."""
        request = self._depart(reason)
        return request if self.membership.running else self._retire()

    def retire(self, reason: str) -> Request:
        """Leave the job like `leave`, but also withdraw the entry, because no workers are running here any more."""
        self._depart(reason)
        return self._retire()

    def _depart(self, reason: str) -> Request:
        self.membership = replace(self.membership, left=self.membership.left or reason or "no reason given")
        done = ChangeState(model.succeeded, ((self.key,), self.membership.round))
        left = ChangeState(model.left, (self.key, self.membership.left), {"leaves": self.membership.left})
        return self.request(done if self.membership.done else left)

    def close(self, reason: str, succeeded: bool) -> Request:
        """Close the job for all nodes."""
        return self.request(ChangeState(model.closed, (self.entry.node, reason, succeeded)))

    def reread(self) -> Request:
        """Read the state again."""
        self._state_stale = True
        return self.request(ChangeState(_as_it_is))

    def shut_down(self) -> bool:
        """Stop taking part for good. Returns whether the store has ever answered."""
        self.membership = replace(self.membership, shut=True)
        return self.state is not None

    def linger(self) -> None:
        """If the job is over or all nodes are leaving, check whether other nodes still need the store in this
        process."""
        state = self.state or State()
        over = state.closed is not None or (not self.heirs and any(key != self.key for key in state.draining))
        self.lingers = self.connection.outage is None and over
        self._roster_stale = True

    @property
    def heirs(self) -> tuple[str, ...]:
        """The keys of the nodes that will stay if this node leaves, as far as it knows. Members come before waiting
        nodes."""
        state = self.state or State()
        out = {self.key, *state.draining}
        keys = dict.fromkeys((*state.busy, *(entry.key for entry in waiting(self.seen.roster, state))))
        return tuple(key for key in keys if key not in out)

    def hand_over(self, timeout: Duration) -> Request:
        """Hand over the store that this process hosts, because the process is about to end."""
        return self.request(HandOver(self.heirs, timeout))

    def lost(self, key: str) -> None:
        """Record that the agent with this key and its workers have ended. This node reports the loss even if it does
        not lead."""
        self.seen = replace(self.seen, ended=self.seen.ended | {key})
        self._roster_stale = True
        self._hurry()

    def request(self, request: Request) -> Request:
        """Add a request. See `pop_settled` for its outcome."""
        if isinstance(request, RefreshRoster):
            self._looks = (*self._looks, request)
        else:
            self._requests = (*self._requests, request)
        self._hurry()
        return request

    def _retire(self) -> Request:
        self._registers = False
        return self.request(Retire())

    def _hurry(self) -> None:
        self.connection = self.connection.retry_now()
        self._requests_at = LONG_AGO

    # -- notifications and outcomes

    def state_changed(self) -> None:
        """Record that another node may have written the state."""
        self._state_stale = True
        self.connection = self.connection.retry_now()

    def roster_changed(self) -> None:
        """Record that another node may have announced or withdrawn an entry."""
        self._roster_stale = True

    def answered(self, answer: Any, now: Instant) -> None:
        """Process the answer to the operation that `next` returned; see `effects`."""
        operation, self._asked = self._asked, None
        before = self.connection
        away, silent = before.was_outage(now), before.since
        renews = isinstance(operation, Heartbeat) or (isinstance(operation, Announce) and self.registered is None)
        known = (self.token, self._to_give_back and self._to_give_back[1])
        confirms = isinstance(operation, ReadState) and answer[1] in known  # a newer one may predate a suspension
        self.connection = before.answered(now, renews, confirms)
        if self.connection.belated is not None:
            self._state_stale = True
        elif before.belated is not None:
            self._delay_heartbeat(now)
        if away:
            self._expect_all_back(now)
            if self._enough is not None:  # members could not rejoin in the meantime, so they get the same time again
                self._enough = (self._enough[0], later(self._enough[1], now - (silent or now)))
        if self._asked_for != "work":
            self._answers = True
        if isinstance(operation, ReadState):
            self._on_state_read(answer[0], answer[1], now)
        elif isinstance(operation, WriteState):
            self._written(operation, answer, now)
        elif isinstance(operation, ReadRoster):
            self._observe(answer, now)
        elif isinstance(operation, Announce):
            self._announced(operation.entry, answer, now)
        elif isinstance(operation, Withdraw):
            self._withdrawn(operation.key)
        elif isinstance(operation, HandOver):
            self._settle()
        elif isinstance(operation, Heartbeat):
            self._beaten(operation, answer, now)

    def _delay_heartbeat(self, now: Instant) -> None:
        """Carry out another operation before the next heartbeat. If the store is slow, the next heartbeat is always
        due, and heartbeats and the reads after them would leave no time for other operations."""
        self._beat_at = max(self._beat_at, later(now, _AFTER))

    def broke(self, error: Exception, now: Instant) -> None:
        """Process the failure of the operation that `next` returned. After a failure, everything that the node has read
        may be out of date."""
        self._asked = None
        self._state_stale = self._roster_stale = True
        self._looks, self._looking = (*self._looking, *self._looks), ()
        if isinstance(error, EntryDroppedError):
            self.connection = self.connection.answered(now)
            self._come_back(now)
            return
        outage = error if isinstance(error, RendezvousConnectionError) else None
        if outage is None:
            self._log_fault(error)
        else:
            self._unregister()  # by the time that the store answers again, it may have lost its data
            self.repair = replace(self.repair, reason="")  # it no longer explains why this node cannot join
            self._extend_join(now)
        self.connection = self.connection.failed(outage, now)
        if self._asked_for == "request":
            self._request_failed(error, outage is not None, now)
        if self._asked_for == "work" and self._answers:
            self._answers = False
            led, self.election = self.election.leading, self.election.failed(now)
            if led and not self.election.leading:
                self._note("warning", "no longer leader", reason=f"{type(error).__name__}: {error}")

    def _request_failed(self, error: Exception, outage: bool, now: Instant) -> None:
        """Retry requests during an outage. A request that fails for another reason is dropped after a failure timeout,
        so that it does not block later requests."""
        self._requests_at = later(self.connection.retry_at or LONG_AGO, _AFTER)
        if outage:
            return
        self._request_fails_since = now if self._request_fails_since is None else self._request_fails_since
        if now - self._request_fails_since >= self.settings.failure_timeout:
            self._settle(error)

    def _log_fault(self, error: Exception) -> None:
        if type(error) is not type(self.fault) and not isinstance(error, ConfigurationError):  # this ends the join
            trace = None if isinstance(error, ElasticError) else error
            self._note("warning", "rendezvous fault", trace, reason=f"{type(error).__name__}: {error}")
        self.fault = error

    def _on_state_read(self, found: State | ForeignStateError | None, token: Token | None, now: Instant) -> None:
        """Process a state that was read. If the state is older than the one that this node knows, the store has lost
        data. The first node that notices the loss writes back the state that it knows. A store that reverts to older
        data uses tokens again, so the same token does not imply the same state."""
        if self.state is not None and token == self.token and (found or State()) == self.state:
            return
        if isinstance(found, ForeignStateError):
            self._pass_over(found, token, now)
            return
        if self.repair.distrusts(found, now):
            self._look_again(now)
            return
        was_spoilt, self.repair = self.repair.since is not None, Repair(self.settings)
        state = found or State()
        runs = self.membership.running and not self.membership.cut_off
        due = state if self.state is None else model.recovered(self.state, state, runs)
        if due is not state:
            self._note("warning", "store lost its state", round=due.round.number)
            self._has_lost_data(now)
            self._to_give_back = (due, token)
            return
        if state == self.state and state.round and not was_spoilt:  # another node has restored it
            self._has_lost_data(now)
        elif self.state is not None and state.round != self.state.round:  # perhaps restored to an empty store
            self.seen = self.seen.all_back_by(later(now, self.settings.failure_timeout))
        self._adopt_state(state, token, now)

    def _pass_over(self, found: ForeignStateError, token: Token | None, now: Instant) -> None:
        """Handle a value that something else has written in place of the state; see `Repair`."""
        first = self.repair.since is None
        self.repair, remedy = self.repair.sees(found, self.state, now)
        if remedy is Remedy.PASS_OVER:
            self._adopt_state(State(), token, now)
        elif remedy in (Remedy.PUT_BACK, Remedy.CHALLENGE):
            if first and remedy is Remedy.PUT_BACK:
                self._note("warning", "state overwritten", reason=str(found))
            self.token, self._to_give_back = token, (self.state or State(), token)
        else:
            if remedy is Remedy.REFUSE:
                self._log_fault(RendezvousStateError(str(found)))
            self._look_again(now)

    def _look_again(self, now: Instant) -> None:
        self._state_stale = True
        self.connection = self.connection.failed(None, now)

    def _adopt_state(self, state: State, token: Token | None, now: Instant) -> None:
        """Adopt the state in the store. Afterwards, the node has to read the roster again, because a roster that was
        read before the state may lack a node that announced itself in between."""
        self._extend_join(now)
        if self.membership.round and self.membership.round.number <= state.stopped.number:
            state = drained(state, self.key)  # it was lost when the job was stopped
        before, self.state, self.token = self.state, state, token
        self._to_give_back, self.repair = None, Repair(self.settings)
        self._requests_at = LONG_AGO
        self._decision = self._decide_at = None
        self._roster_stale = True
        if before is not None and before.round != state.round:
            self.seen = replace(self.seen, ended=frozenset(), heard=frozenset())
        if state.open and (before is None or before.round != state.round):
            here, job = (f"{it.min_nodes}:{it.max_nodes}" for it in (self.settings, state))
            for name, own, jobs in (
                ("--nnodes", here, job),
                ("--max-restarts", self.entry.max_restarts, state.max_restarts),
            ):
                if own != jobs:
                    self._note("warning", "settings differ", setting=name, here=own, job=jobs)
        nobody_leads = bool(state.round) and not state.open and not state.closed and not state.busy
        self.election = replace(self.election, recount=nobody_leads)
        self._follow()

    def _follow(self) -> None:
        """Become a member of the round that this node wants, if that round has formed. If the round was formed from an
        older entry of this node with another address, end the round."""
        state = self.state
        if not self.membership.joins or state is None:
            return
        self._catch_up()
        rank = state.rank(self.key)
        if rank is None or self.join_status is not JoinStatus.MEMBER:
            return
        if state.seats[rank] == self.entry.seat:
            self.membership = replace(self.membership, round=state.round, formed=state, joins=False, running=True)
        else:
            reason = f"{self.entry.node} has since announced another address"
            self.request(ChangeState(_given_up, (self.key, state.round, Cause.LEFT, self.entry.node, reason)))

    def _catch_up(self) -> None:
        """Request a newer round if this node has missed the last one; see `missed`."""
        if self.state is None or self.key in self.state.draining:
            return
        over = missed(self.state, self.key, self.entry.after)
        if over is not None:
            self.entry = replace(self.entry, after=over)

    def _written(self, operation: WriteState, answer: Any, now: Instant) -> None:
        if answer is None:
            self._state_stale, self._to_give_back = True, None
            return
        state, token, written = answer
        if not written:
            self._to_give_back = None
            self._refusals += self._asked_for == "request"
            self._on_state_read(state, token, now)
            return
        if self.repair.challenges:
            self._to_give_back = None
            self._look_again(now)
            return
        if self._asked_for == "work" and isinstance(self._decision, Write):
            reason = self._decision.reason
            self._note("debug", "rendezvous state written", round=operation.state.round.number, reason=reason)
        self._adopt_state(operation.state, token, now)

    def _observe(self, found: tuple[Registration, ...], now: Instant) -> None:
        state = self.state or State()
        dropped = self.registered is not None and self.seen.drops(self.key, found)
        self.seen = self.seen.after_look(found, state, now)
        if dropped:
            self._come_back(now)
        keys = [item.key for item in found if item.entry is not None]  # a node with an unreadable entry cannot lead
        before = keys[: keys.index(self.key)] if self.key in keys else keys
        if self.election.recount:
            older = sum(not state.seated(key) for key in before)
            self.election = replace(self.election, recount=False, older=older)
        if self.election.stepping_in:
            self._on_succession_read(keys, now)
        for look in self._looking:
            self._settled = (*self._settled, (look, None))
        self._looking = ()
        others = any(not seen.late and seen.entry.key != self.key for seen in self.seen.roster)
        self.lingers = self.lingers and others
        self._judge(now)
        if isinstance(self._decision, Write):
            self._delay_heartbeat(now)

    def _on_succession_read(self, keys: list[str], now: Instant) -> None:
        """Presume that the first node in the succession order is lost, because it has not taken the lead. If that
        node's heartbeats continue, it is alive but cannot lead."""
        state = self.state or State()
        line = [key for key in state.busy if key not in state.draining]
        seated = set(line)
        line += [key for key in keys if key not in seated]
        before = line[: line.index(self.key)] if self.key in line else []
        self.seen = self.seen.overdue_by_log(before[:1], before[1:], now)
        self._roster_stale = True
        self.election = replace(self.election, succession_read=True)

    def _announced(self, entry: Entry, older: int, now: Instant) -> None:
        if self.registered is None:
            self._beat_at = later(now, self.settings.keep_alive_interval)
        self.election = replace(self.election, older=older)
        self.registered = self._stored_before = entry
        self._roster_stale = True

    def _withdrawn(self, key: str) -> None:
        self._roster_stale = True
        self.seen = replace(self.seen, ended=self.seen.ended - {key})  # if the key returns, its agent is alive
        if key == self.key:
            self.registered = self._stored_before = None
            self._may_be_stored = False
            self.election = self.election.lead_lost()

    def _beaten(self, operation: Heartbeat, count: int | None, now: Instant) -> None:
        """Process the result of a heartbeat. The leader also reads the roster after each of its heartbeats, to check
        all nodes' heartbeats once per interval."""
        self._roster_stale = True
        election, place = self.election, self._place
        if election.stepping_in and operation.leading:
            self._note("info", "became leader", reason=election.stepping_in)
            self.election = election.counted(count, now, place).leads()
            return
        self._beats += 1
        self._beat_at = later(now, self.settings.keep_alive_interval)
        if election.leading:
            self.election = election.counted(count, now, place)
        elif count is not None:
            self.election = election.seen(count, now, place)

    def _come_back(self, now: Instant) -> None:
        """Recover after the store has lost this node's entry, and perhaps those of other live nodes."""
        self._note("warning", "entry dropped")
        self._expect_all_back(now)
        self._unregister()

    def _unregister(self) -> None:
        """Bring the entry up to date, and record that it has to be written again. The old entry may still announce that
        the node waits for the round that it is now in. If the store has lost that round, the old entry would give the
        node a seat in another round while its workers are still running."""
        self.registered = None
        if self._stored_before is None or not self.membership.round:
            return
        in_its_round = replace(self.entry, after=self.membership.round, waits=False)
        if not self.membership.joins:
            self.entry = self._stored_before = in_its_round
        elif self._stored_before.after != self.entry.after:
            self._stored_before = in_its_round

    def _has_lost_data(self, now: Instant) -> None:
        """React to a loss of data in the store. The next heartbeat is sent now, to find out whether this node's entry
        is also lost."""
        self._expect_all_back(now)
        self._beat_at = now

    def _expect_all_back(self, now: Instant) -> None:
        """Give all nodes time to announce themselves again before a node without an entry is considered lost. During
        the outage, the store may have dropped all entries for lack of heartbeats."""
        self.seen, self.election = self.seen.after_outage(now), self.election.after_outage(now)
        if self.state is not None and self.state.round:
            self.seen = self.seen.all_back_by(later(now, self.settings.failure_timeout))

    def _extend_join(self, now: Instant) -> None:
        """Restart the join timeout if the node is waiting for a round to end, because the timeout applies only while
        the next round is forming."""
        if self._waits:
            join_by = later(now, self.settings.timeout.join.total_seconds())
            self.membership = replace(self.membership, join_by=join_by)

    # -- deciding what to do next

    def next(self, now: Instant, vacant: bool = False) -> Operation | Idle:
        """Return one operation, or `Idle`. The driver reports the outcome of the operation before it calls `next`
        again. For `vacant`, see `RosterBackend`."""
        if self.registered is not None and (vacant or self.election.vacant_since is not None):
            self.election = self.election.leader_left(vacant, now, self._place)
        operation = self._operation(now) if self.connection.retry_due(now) else None
        if operation is None:
            if self.connection.retry_at is None and not self._requests:  # nothing is left to do
                self._all_is_well()
            return self._rest(now)
        self._asked, self.connection = operation, self.connection.began(now)
        return operation

    def _all_is_well(self) -> None:
        if self.connection.logged:
            self._note("info", "store is back")
        self.connection, self.fault, self.election = self.connection.faults_forgotten(), None, self.election.worked()

    def _operation(self, now: Instant) -> Operation | None:
        # Heartbeats come first, so that no other problem makes other nodes consider this one lost.
        self._asked_for = ""
        return (
            self._beat(now)
            or self._restore()
            or self._read()
            or self._give_back(now)
            or self._serve(now)
            or self._register()
            or self._step_in()
            or self._work(now)
        )

    def _beat(self, now: Instant) -> Operation | None:
        if not self._registers or self.registered is None or now < self._beat_at:
            return None
        return Heartbeat(self.key, self.election.leading, self.election.looks(self._place, self._beats))

    def _restore(self) -> Operation | None:
        """Announce the node's earlier entry again after an outage. This comes before the state is read, because reading
        may fail."""
        if not self._registers or self.registered is not None or self._stored_before is None:
            return None
        return self._announce(self._stored_before)

    def _read(self) -> Operation | None:
        if not self._state_stale and (self.state is not None or self._to_give_back is not None):
            return None
        self._state_stale = False
        return ReadState()

    def _give_back(self, now: Instant) -> Operation | None:
        if self._to_give_back is None or not self.repair.is_due(self.election.leading, self._give_back_at, now):
            return None
        self._give_back_at = later(now, self.settings.keep_alive_interval)
        return WriteState(*self._to_give_back)

    def _serve(self, now: Instant) -> Operation | None:
        """Work on the first pending request. Requests come before announcements, so that the node reports a failure
        before it announces that it is ready for the next round. Otherwise, the current round would end for another
        reason."""
        while self._requests and now >= self._requests_at:
            request = self._requests[0]
            self._asked_for = "request"
            if isinstance(request, ChangeState):
                operation = self._amended(request, now)
                if operation is not None:
                    return operation
            elif isinstance(request, HandOver):
                return request
            elif self._registers or not self._may_be_stored:
                self._settle()
            else:
                return Withdraw(self.key)
        self._asked_for = ""
        return None

    def _amended(self, request: ChangeState, now: Instant) -> Operation | None:
        """Return an operation that writes the changed state or reports the change to the leader. Returns None if the
        request is settled or has to wait until `_requests_at`."""
        state = self.state or State()
        try:
            changed = request.change(state, *request.arguments)
        except Exception as error:  # noqa: BLE001 - a request that fails must not end the heartbeats
            self._settle(error)
            return None
        if changed is state:
            self._settle()
            return None
        if state.open or not request.later or self.registered is None:
            return WriteState(self._counted(changed), self.token)
        self._report(**request.later)
        if self.registered != self.entry:
            self._reported_at = now
            return self._announce(self.entry)
        leaves = not self._registers or any(isinstance(other, Retire) for other in self._requests)
        due = later(self._reported_at, _HEARD * (1 + min(self._place, _MOST_PLACES)))
        if leaves and now < due:  # until the leader has seen the entry
            self._requests_at = due
        elif leaves and self._refusals < _ATTEMPTS and self._roster_stale:
            return self._look()
        elif leaves and self._refusals < _ATTEMPTS:  # also write all other nodes' reports
            changed = request.change(with_reports(self.seen.roster, state), *request.arguments)
            return WriteState(self._counted(changed), self.token)
        else:
            self._settle()
        return None

    def _counted(self, changed: State) -> State:
        """Return the changed state with its serial number. A new round gets an id that no other write has used."""
        if changed.round.number > (self.state or State()).round.number:
            self._rounds_formed += 1
            changed = replace(changed, round=changed.round._replace(by=f"{self.key}.{self._rounds_formed}"))
        return replace(changed, serial=changed.serial + 1, origin=changed.origin or self.key)

    def _report(self, **facts: Any) -> None:
        """Set these fields of `Reported` in the entry."""
        reported, round_id = self.entry.reported, self.membership.round
        before = reported if reported is not None and reported.round == round_id else Reported(round_id)
        self.entry = replace(self.entry, reported=replace(before, **facts))

    def _settle(self, fault: Exception | None = None) -> None:
        request, *others = self._requests
        self._requests, self._request_fails_since, self._refusals = tuple(others), None, 0
        self._settled = (*self._settled, (request, fault))

    def _register(self) -> Operation | None:
        waits = any(isinstance(request, ChangeState) for request in self._requests)
        if waits or not self._registers:
            return None
        state, reported = self.state or State(), self.entry.reported
        ended = sorted(filter(state.seated, self.seen.ended)) if self._leaves_to_leader(state) else []
        ended.sort(key=lambda key: key not in state.busy)  # an entry has room for only a few
        if ended != list(reported.ended if reported else ()):
            self._report(ended=tuple(ended))
        return None if self.registered == self.entry else self._announce(self.entry)

    def _announce(self, entry: Entry) -> Operation:
        self._may_be_stored = True
        return Announce(entry)

    def _step_in(self) -> Operation | None:
        """Take the lead by incrementing the leader counter before writing anything. A write may move another node to
        the front of the succession order, and that node must not find a stopped counter."""
        is_next = self._place == 1  # this node must know whether the first node sends heartbeats
        recounts = self.election.recount and (is_next or ordered_by_age(self.state or State(), self.key))
        if self.registered is None or not (self.election.stepping_in or recounts):
            return None
        if self.election.succession_read and self.election.stepping_in:
            return Heartbeat(self.key, leading=True, look=True)
        return self._look()

    def _look(self) -> Operation:
        self._roster_stale = False
        self._looking, self._looks = (*self._looking, *self._looks), ()
        return ReadRoster()

    def _work(self, now: Instant) -> Operation | None:
        """Do the leader's work. The first node in succession order leads without waiting for silence."""
        waits = self.election.leading or self.registered is None or self.election.paused(now)
        if not waits and self._place == 0:
            self.election = self.election.leads()
            self._roster_stale = True
        self._asked_for = "work"
        state = self.state or State()
        reports = self.seen.has_unreported(state) and not self._leaves_to_leader(state)
        if self._looks or (self._roster_stale and (reports or self.wants_roster)):
            return self._look()
        if not (self.election.leading or reports):
            return None
        if self._decide_at is not None and now >= self._decide_at:
            self._judge(now)
        dead = self.seen.dead(state, now)
        if isinstance(self._decision, Write) and dead not in self.seen.ended:
            return WriteState(self._counted(self._decision.state), self.token)
        return None if dead is None else Withdraw(dead)

    def _leaves_to_leader(self, state: State) -> bool:
        """Return whether the leader, rather than this node, should record in the state which agents have ended. The
        leader should do so if the round is already over and the leader's own agent has not ended."""
        first = next((key for key in state.busy if key not in state.draining), None)
        return not (state.open or self.election.leading or first in (None, self.key) or first in self.seen.ended)

    @property
    def _place(self) -> int:
        return position(self.state or State(), self.key, self.election.older)

    def _judge(self, now: Instant) -> None:
        """Decide on the next step, which this node carries out if it leads."""
        state, roster = self.state or State(), self.seen.roster
        if not enough(roster, state, self.settings):
            self._enough = None
        elif self._enough is None or self._enough[0] != state.round:
            self._enough = (state.round, now)
        since = None if self._enough is None else self._enough[1]
        self._decision = decide(roster, state, self.settings, now, since, self.seen.settled)
        self._decide_at = None
        if isinstance(self._decision, Wait):
            self._decide_at = self._decision.until
            self.gathering = None if state.open else self._decision

    def _rest(self, now: Instant) -> Idle:
        times = [later(now, _IDLE)]
        if self.connection.retry_at is not None:
            times = [self.connection.retry_at]
        elif self._registers:
            times = [self._beat_at if self.registered else later(now, self.settings.keep_alive_interval)]
            if self.election.leading and self._decide_at is not None:
                times.append(self._decide_at)
            if self.election.leading and self._to_give_back is not None:
                times.append(self._give_back_at)
        if self._requests:
            times.append(max(self._requests_at, self.connection.retry_at or now))
        return Idle(min(times))

    @property
    def wants_roster(self) -> bool:
        """Whether the node needs to know about changes to the roster."""
        return self.election.leading or self.lingers

    @property
    def lacking(self) -> int:
        """How many new announcements wake the leader while nodes are joining. The number is half of the missing
        announcements, so that a thousand nodes wake the leader about ten times instead of a thousand times. The leader
        also reads the roster with every heartbeat."""
        wait = self.gathering
        if wait is None or self.lingers or (self.state is not None and self.state.open):
            return 1
        return max(1, (len(wait.missing) or wait.wanted - wait.joined) // 2)

    # -- queries from the handler

    @property
    def join_status(self) -> JoinStatus:
        """The node's progress in joining the next round."""
        return join_status(self.state or State(), self.key, self.entry.after, self.settings.max_nodes)

    def obstacle(self, now: Instant) -> ElasticError | None:
        """Return the reason why the node cannot join the round that it wants, or None while it still can."""
        member, state = self.membership, self.state
        if member.shut:
            return RendezvousGracefulExitError("the rendezvous was shut down on this node")
        if member.left:
            return RendezvousGracefulExitError("this node left the rendezvous while it was joining")
        if member.running:
            return None
        if isinstance(self.fault, ElasticError):
            return self.fault
        final = (JoinStatus.CLOSED, JoinStatus.DRAINED, JoinStatus.REFUSED)
        if member.joins and state is not None and self.join_status in final:
            had, run_id = bool(member.round), self.settings.run_id
            return messages.no_place(state, self.join_status, self.key, run_id, member.was_closed, had)
        due = self.join_deadline
        if due is None or now < due:
            return None
        if state is None and self.repair.reason:
            return RendezvousStateError(self.repair.reason)
        if state is None:
            return messages.no_contact(self.connection.outage, self.fault, self.settings)
        if self._waits or self.connection.outage is not None or self.fault is not None:
            return messages.no_answer(self.connection.outage, self.fault, self.settings.timeout.join.total_seconds())
        return messages.too_few(self.settings, self.progress())

    @property
    def join_deadline(self) -> Instant | None:
        """The time at which the node stops trying to join. There is no deadline (None) while the store answers and the
        node waits for a running round to end. If the store has never answered, the node gives up sooner, because the
        endpoint may be wrong."""
        if self.state is None:
            return min(self.membership.join_by, self.membership.contact_by)
        if not self._waits:
            return self.membership.join_by
        silent = self.connection.since
        return None if silent is None else later(silent, self.settings.timeout.join.total_seconds())

    @property
    def _waits(self) -> bool:
        """Whether the node must wait, with no time limit, for the running round to end."""
        others_run = self.join_status in (JoinStatus.WAITING, JoinStatus.SPARE)
        return self.membership.joins and self.connection.outage is None and others_run

    def verdict(self, now: Instant, grace: Duration = 0.0) -> Verdict | None:
        """Return why the round has ended for this node, or None while the round is running. For `grace`, see
        `RosterBackend`."""
        if not self.membership.running or self.state is None:
            return None
        found = verdict(self.state, self.key, self.membership.round)
        if found is None:
            since = self.connection.since
            self.connection, cut_off = self.connection.fenced(grace, now)
            if cut_off and since is not None:
                found = messages.fenced(now - since, self.settings.failure_timeout, self.connection.outage)
                self.membership = replace(self.membership, cut_off=True)
        return found

    def unfinished(self) -> tuple[int, ...] | None:
        """Return the ranks in this node's round whose workers have not succeeded, or None if the state contains another
        round."""
        state = self.state
        if state is None or state.round != self.membership.round:
            return None
        done = set(state.done)
        return tuple(rank for rank, key in enumerate(state.seats.keys) if key not in done)

    def waiting(self) -> int:
        """Return the number of waiting nodes that fit into the next round, according to the last read of the roster."""
        state = self.state or State()
        room = self.settings.max_nodes - (len(state.busy) if state.open else 0)
        return min(len(waiting(self.seen.roster, state)), max(room, 0))

    def progress(self) -> str:
        """Describe in one line what this node is waiting for."""
        return messages.progress(self.state, self.gathering, self.seen.roster, self.settings, self.key)

    @property
    def neighbour(self) -> tuple[Seat, RoundId] | None:
        """The seat of the member whose lifeline this node watches, and the round; None if there is none."""
        member, state = self.membership, self.state
        seat = None if state is None or member.left or member.shut else state.neighbour(self.key)
        return (seat, state.round) if state is not None and seat is not None and seat.lifeline else None

    @property
    def host(self) -> str:
        """The key of rank 0 in the newest round; empty before the first round."""
        return self.state.seats[0].key if self.state is not None and self.state.seats else ""

    def suspects(self, most: int) -> tuple[Seat, ...]:
        """Return up to `most` members that this node may be unable to reach. If a lost connection may have ended this
        node's last round, these are members of that round. If a running round excludes this node because it could not
        reach some members, these are members of the running round."""
        state = self.state or State()
        failed = state.end is not None and state.end.cause_unclear
        mine = state.round == self.membership.round and state.seated(self.key)
        if not (self.entry.unreachable if state.open else failed and mine):
            return ()
        rank, size = state.rank(self.key) or 0, len(state.seats)
        ring = dict.fromkeys([0, *((rank + step) % size for step in range(1, most))])
        return tuple(seat for seat in (state.seats[place] for place in ring) if seat.key != self.key)

    def notice(self, now: Instant) -> Instant:
        """Log an outage that has lasted for a while, even if an attempt hangs. Returns when to call this method
        again."""
        since = self.connection.since
        if since is not None and self.connection.should_log(now):
            reason = str(self.connection.outage or "it does not answer")
            self._note("warning", "store out of reach", seconds=round(now - since, 1), reason=reason)
            self.connection = replace(self.connection, logged=True)
        return self.connection.next_look(now)

    def stop_by(self, now: Instant, grace: Duration) -> Instant | None:
        """Return the time by which the last round's workers must have ended, or None if there is no limit. There is no
        limit if the job has ended. There is none either if this node is leaving, because other nodes then wait until
        its entry is withdrawn. If this node was declared lost, or a round has formed without it, its workers must end
        immediately. If this node has been cut off for too long, its workers get half a heartbeat interval, because
        other nodes may continue without it."""
        state, member = self.state or State(), self.membership
        if state.closed:
            return None
        if state.round != member.round or (self.key in state.gone and not member.left):
            return LONG_AGO
        if member.left:
            return None
        return later(self.connection.fence_at(grace, now), self.settings.keep_alive_interval / 2)

    def pop_log_lines(self) -> tuple[LogLine, ...]:
        """Return the log lines that were added since the last call."""
        notes, self._notes = self._notes, ()
        return notes

    def pop_settled(self) -> tuple[tuple[Request, Exception | None], ...]:
        """Return the requests that were settled since the last call, each with the error, or with None if the request
        succeeded."""
        settled, self._settled = self._settled, ()
        return settled

    def _note(
        self,
        level: Literal["debug", "info", "warning"],
        event: EventName,
        trace: Exception | None = None,
        **fields: Any,
    ) -> None:
        self._notes = (*self._notes, LogLine(level, event, fields, trace))


def _as_it_is(state: State) -> State:
    return state


def _given_up(state: State, key: str, round_id: RoundId, cause: Cause, by: str, reason: str) -> State:
    """End the round because a node gives it up. If failures on other nodes have already ended the round, the loss of
    this node may have caused them, unless its own workers have also failed."""
    if state.round != round_id or not state.seated(key) or key in state.done:
        return state
    if state.open:
        return model.ended(state, cause, by, reason)
    own = state.end is None or any(report.key == key for report in state.end.reports)
    return state if own or cause is not Cause.LOST else model.followed(state, cause, by, reason)
