"""One node's side of the rendezvous, without I/O: everything that it knows and wants about the job. It has no clock,
store, thread or randomness. These come in, each with `now` on the node's own monotonic clock:

- what its agent wants (`begin`, `want`, `fail`, `succeed`, `leave`, `close`, ...),
- news of the store (`state_changed`, `roster_changed`),
- the answer to the operation that it last asked for (`answered`, `broke`).

`next` says what follows: one operation on the backend, or a rest. What a node wants is kept as a level, not as an edge:
an entry that should stand in the store, requests that should be carried out. So after a lost answer, an outage or a
refused write the node looks at what stands in the store and goes on from there.

The file reads from top to bottom: what the node knows, what its agent may ask, what it hears, what it does next, and
what it answers. Whether the store answers (`connection`), which node leads (`election`), what is seen of the others
(`observation`) and the membership policy (`policy`) are values and functions of their own; all changes happen here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.errors import (
    ConfigurationError,
    ElasticError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.backend import EntryDroppedError
from elastic_core.rendezvous import messages, model
from elastic_core.rendezvous.attribution import is_certain
from elastic_core.rendezvous.codec import bounded
from elastic_core.rendezvous.connection import Connection
from elastic_core.rendezvous.effects import (
    Amend,
    Announce,
    Beat,
    HandOver,
    Look,
    Note,
    ReadRoster,
    ReadState,
    Rest,
    Retire,
    Unreadable,
    Withdraw,
    WriteState,
)
from elastic_core.rendezvous.election import Election, goes_by_age, position
from elastic_core.rendezvous.membership import JoinStatus, Membership, join_status, missed, verdict
from elastic_core.rendezvous.model import NO_ROUND, Cause, Report, Reported, State
from elastic_core.rendezvous.observation import Observation
from elastic_core.rendezvous.policy import Wait, Write, decide, enough, with_reports
from elastic_core.rendezvous.repair import Remedy, Repair
from elastic_core.rendezvous.roster import waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure, RendezvousError
    from elastic_core.interfaces.backend import Token
    from elastic_core.interfaces.handler import RendezvousStoreInfo, Verdict
    from elastic_core.log import EventName
    from elastic_core.rendezvous.effects import Operation, Registration, Request
    from elastic_core.rendezvous.model import Entry, RoundId
    from elastic_core.rendezvous.policy import Decision
    from elastic_core.rendezvous.seats import Seat
    from elastic_core.rendezvous.settings import RendezvousSettings

_IDLE: Duration = 5.0  # between two looks at what there is to do, of a node that wants nothing and hears no news
_HEARD: Duration = 0.5  # for each place in the succession order, for the leader to write what a node reports
_MOST_PLACES = 4
_ATTEMPTS = 3  # refused writes after which a node that leaves no longer tries to write its own departure
_AFTER: Duration = 0.01  # requests are tried again a little later than everything else, which they must not hold up


class Node:
    """See above. All attributes are values, so that a shallow copy of a node is another node.

    Args:
        entry: what this node announces, before its first round.

    Attributes:
        state, token: what was last read, None before; and the token of its write.
        registered: the entry of this node that stands in the store; None if none does, as far as is known.
        entry: what it announces, or would.
        membership: the round that it is in, or wants.
        election: which node leads, as this one sees it.
        connection: whether the store answers.
        repair: whether something else has overwritten the state.
        lingers: whether it hosts the store of a job that is over, and others are still there.
        seen: what it sees of the others.
        gathering: what a round waits for, as seen last; None if this node has not looked.
        fault: what went wrong last, other than an outage; None once nothing was left to do, and all went well.
    """

    def __init__(self, entry: Entry, settings: RendezvousSettings) -> None:
        self.key = entry.key
        self.settings = settings
        # The state, and whether it may be another one by now. What a store that forgot it is to get back.
        self.state: State | None = None
        self.token: Token | None = None
        self._state_stale = True
        self._to_give_back: tuple[State, Token | None] | None = None
        self._give_back_at = LONG_AGO
        self.repair = Repair(settings)
        # This node's entry: what should stand (if it is to be registered), what does, and what did before an outage.
        self.entry = entry
        self._registers = False
        self.registered: Entry | None = None
        self._stood: Entry | None = None
        self._may_stand = False
        self._rounds_formed = 0
        self._reports = 0
        self._beat_at = LONG_AGO
        self._beats = 0
        # The others, and what follows from what is seen of them.
        self.seen = Observation.of(settings)
        self._roster_stale = True
        self._enough: tuple[RoundId, Instant] | None = None
        self._decision: Decision | None = None
        self._decide_at: Instant | None = None
        self.gathering: Wait | None = None
        self.election = Election(settings)
        # What the agent learns: the round it is in, the join it waits for.
        self.membership = Membership()
        self.lingers = False
        # What was asked for and is not done yet, and what became of it.
        self._requests: tuple[Request, ...] = ()
        self._looks: tuple[Look, ...] = ()
        self._looking: tuple[Look, ...] = ()
        self._requests_at = LONG_AGO
        self._request_fails_since: Instant | None = None
        self._refusals = 0
        self._reported_at = LONG_AGO
        self._settled: tuple[tuple[Request, Exception | None], ...] = ()
        # Operations and what goes wrong with them.
        self._asked: Operation | None = None
        self._asked_at: Instant | None = None
        self._asked_for = ""
        self._answers = False
        self.connection = Connection(settings)
        self.fault: Exception | None = None
        self._notes: tuple[Note, ...] = ()

    # -- what its agent may ask

    def begin(self, now: Instant) -> None:
        """The agent wants a round within `join_timeout`, regardless of what was before."""
        join_by = later(now, self.settings.timeout.join.total_seconds())
        contact_by = later(now, self.settings.first_contact[0])
        self.membership = replace(
            self.membership, running=False, joins=False, done=False, join_by=join_by, contact_by=contact_by
        )

    def want(self, where: RendezvousStoreInfo, unreachable: Sequence[str] = (), lifeline: int = 0) -> None:
        """It wants a round newer than the last one it was in. `where`: the workers' store would be, if this node gets
        rank 0. `unreachable`: keys of members of the last round that it cannot reach. `lifeline`: see `Entry`."""
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
        )
        if self._state_stale or self.connection.outage is not None:
            self._catch_up()  # it is looked at again before the node comes to its round
        else:
            self._follow()
        self._hurry()

    def _give_up_round(self) -> None:
        """A node that wants a new round while its last one runs ends that for all, as users of torch's handlers expect:
        they report nothing. Does nothing after a report, or when the round is over."""
        name, round_id, cut_off = self.entry.node, self.membership.round, self.membership.cut_off
        if round_id:
            reason = f"{name} was cut off from the store" if cut_off else f"{name} wants a new round"
            cause = Cause.LOST if cut_off else Cause.LEFT
            self.request(Amend(_given_up, (self.key, round_id, cause, name, reason)))

    def reaches(self, unreachable: Sequence[str]) -> None:
        """These are the members that it cannot reach now."""
        self.entry = replace(self.entry, unreachable=tuple(unreachable))
        self._hurry()

    def step_back(self) -> None:
        """It does not come to the round that it wanted."""
        self.membership = replace(self.membership, joins=False, running=False)
        self._retire()

    def fail(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Its workers failed."""
        shown = tuple(bounded(failure) for failure in failures.values())
        self._reports += 1
        report = Report(self.key, self.entry.node, shown, is_certain(failures), self._reports)
        self.request(Amend(model.failed, (self.membership.round, report), {"failure": report}))

    def succeed(self) -> None:
        """Its workers are done."""
        self.membership = replace(self.membership, done=True)
        if not self.membership.left:
            self.entry = replace(self.entry, done=self.membership.round)
            self._hurry()

    def leave(self, reason: str) -> Request:
        """It takes part no longer, for good; a join ends. Its entry stays for as long as its workers may run, because
        the others wait for them to stop. Returns the request that is settled once the others can know."""
        request = self._go(reason)
        return request if self.membership.running else self._retire()

    def retire(self, reason: str) -> Request:
        """As `leave`, and no worker runs here any more."""
        self._go(reason)
        return self._retire()

    def _go(self, reason: str) -> Request:
        self.membership = replace(self.membership, left=self.membership.left or reason or "no reason given")
        done = Amend(model.succeeded, ((self.key,), self.membership.round))
        left = Amend(model.left, (self.key, self.membership.left), {"leaves": self.membership.left})
        return self.request(done if self.membership.done else left)

    def close(self, reason: str, succeeded: bool) -> Request:
        """The job is over for all nodes."""
        return self.request(Amend(model.closed, (self.entry.node, reason, succeeded)))

    def reread(self) -> Request:
        """Read the state once more. Settled when that is done."""
        self._state_stale = True
        return self.request(Amend(_as_it_is))

    def shut_down(self) -> bool:
        """It never takes part again. Whether the store has ever answered."""
        self.membership = replace(self.membership, shut=True)
        return self.state is not None

    def linger(self) -> None:
        """It hosts the store. If the job is over, it watches whether others are still there to learn of it."""
        self.lingers = self.connection.outage is None and self.state is not None and self.state.closed is not None
        self._roster_stale = True

    def hand_over(self, timeout: Duration) -> Request:
        """It hosts the store, and goes. Members of the last round come first, who are not about to go too."""
        state = self.state or State()
        out = {self.key, *state.draining}
        return self.request(HandOver(tuple(key for key in state.busy if key not in out), timeout))

    def lost(self, key: str) -> None:
        """The agent with this key has ended, and so have its workers. Who knows that tells it, whoever leads."""
        self.seen = self.seen.knows_ended(key)
        self._roster_stale = True
        self._hurry()

    def request(self, request: Request) -> Request:
        """Any other request. It is settled later, see `take_settled`."""
        if isinstance(request, Look):
            self._looks = (*self._looks, request)
        else:
            self._requests = (*self._requests, request)
        self._hurry()
        return request

    def _retire(self) -> Request:
        self._registers = False
        return self.request(Retire())

    def _hurry(self) -> None:
        self.connection = self.connection.hurries()
        self._requests_at = LONG_AGO

    # -- what happens to it

    def state_changed(self) -> None:
        """A node wrote the state, or may have."""
        self._state_stale = True
        self.connection = self.connection.hurries()

    def roster_changed(self) -> None:
        """A node came or went, or may have."""
        self._roster_stale = True

    def answered(self, answer: Any, now: Instant) -> None:
        """The operation that `next` asked for was carried out; `effects` says what the answer is."""
        operation, asked = self._end_operation(now)
        away, silent = self.connection.was_away(asked, now), self.connection.silent_since(asked)
        self.connection = self.connection.answered(asked, now)
        if away:
            self._expect_all_back(now)
            self._wait_longer(now - (silent or now))
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
        elif isinstance(operation, Beat):
            self._beaten(operation, answer, now)

    def broke(self, error: Exception, now: Instant) -> None:
        """The operation that `next` asked for failed. What was read before it may no longer stand."""
        _, asked = self._end_operation(now)
        purpose = self._asked_for
        self._state_stale = self._roster_stale = True
        self._looks, self._looking = (*self._looking, *self._looks), ()
        if isinstance(error, EntryDroppedError):
            self.connection = self.connection.answered(asked, now)
            self._come_back(now)
            return
        outage = error if isinstance(error, RendezvousConnectionError) else None
        if outage is None:
            self._tell_fault(error)
        else:
            self._unregister()  # the store may come back without its memory
            self._extend_join(now)
        self.connection = self.connection.failed(asked, outage, now)
        if purpose == "request":
            self._request_failed(error, outage is not None, now)
        if purpose == "work" and self._answers:
            self._work_failed(error, now)

    def _request_failed(self, error: Exception, outage: bool, now: Instant) -> None:
        """Requests are retried during an outage. One that fails for another reason is dropped after a failure timeout,
        so that it does not block later requests."""
        self._requests_at = later(self.connection.retry_at or LONG_AGO, _AFTER)
        if outage:
            return
        self._request_fails_since = now if self._request_fails_since is None else self._request_fails_since
        if now - self._request_fails_since >= self.settings.failure_timeout:
            self._settle(error)

    def _work_failed(self, error: Exception, now: Instant) -> None:
        self._answers = False
        led, self.election = self.election.leading, self.election.failed(now)
        if led and not self.election.leading:
            self._note("warning", "leads no more", reason=f"{type(error).__name__}: {error}")

    def _tell_fault(self, error: Exception) -> None:
        if type(error) is not type(self.fault) and not isinstance(error, ConfigurationError):  # which ends the join
            trace = None if isinstance(error, ElasticError) else error  # whose words say it all
            self._note("warning", "rendezvous fault", trace, reason=f"{type(error).__name__}: {error}")
        self.fault = error

    def _on_state_read(self, found: State | Unreadable | None, token: Token | None, now: Instant) -> None:
        """A store that knows less than this node does has lost its memory (its host was started anew): the first node
        that notices writes back what the nodes know."""
        if self.state is not None and token == self.token:
            return
        if isinstance(found, Unreadable):
            self._pass_over(found, token, now)
            return
        if self.repair.doubts(found, now):
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
        if state == self.state and state.round and not was_spoilt:  # another node gave it back
            self._has_lost_data(now)
        elif self.state is not None and state.round != self.state.round:  # perhaps given back to a store that was empty
            self.seen = self.seen.all_back_by(later(now, self.settings.failure_timeout))
        self._adopt_state(state, token, now)

    def _pass_over(self, found: Unreadable, token: Token | None, now: Instant) -> None:
        """Something else has written in the place of the state; see `repair`."""
        first = self.repair.since is None
        self.repair, remedy = self.repair.sees(found, self.state, now)
        if remedy is Remedy.PASS_OVER:
            self._adopt_state(State(), token, now)
        elif remedy in (Remedy.PUT_BACK, Remedy.CHALLENGE):
            if first and remedy is Remedy.PUT_BACK:
                self._note("warning", "state spoilt", reason=found.reason)
            self.token, self._to_give_back = token, (self.state or State(), token)
        else:
            if remedy is Remedy.REFUSE:
                self._tell_fault(RendezvousStateError(found.reason))
            self._look_again(now)

    def _look_again(self, now: Instant) -> None:
        self._state_stale = True
        self.connection = self.connection.failed(now, None, now)

    def _adopt_state(self, state: State, token: Token | None, now: Instant) -> None:
        """This state stands in the store. The roster has to be read again: no decision about a state uses a roster that
        was read before it, because a node that announced itself in between would be missing."""
        self._extend_join(now)
        before, self.state, self.token = self.state, state, token
        self._to_give_back, self.repair = None, Repair(self.settings)
        self._requests_at = LONG_AGO
        self._decision = self._decide_at = None
        self._roster_stale = True
        if before is not None and before.round != state.round:
            self.seen = replace(self.seen, ended=frozenset(), heard=frozenset())
        nobody_leads = bool(state.round) and not state.open and not state.closed and not state.busy
        if nobody_leads != self.election.recount:
            self.election = replace(self.election, recount=nobody_leads)
        self._follow()

    def _follow(self) -> None:
        """Take a node that wants a round to the one that runs. A round that formed from an older entry of the node has
        another address for it, so it cannot run."""
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
            reason = f"{self.entry.node} has announced another address since"
            self.request(Amend(_given_up, (self.key, state.round, Cause.LEFT, self.entry.node, reason)))

    def _catch_up(self) -> None:
        """It wants a round newer than the last one, if that is not its own."""
        over = None if self.state is None else missed(self.state, self.key, self.entry.after)
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
        keys = [item.key for item in found if item.entry is not None]  # a node whose entry cannot be read does not lead
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

    def _on_succession_read(self, keys: list[str], now: Instant) -> None:
        """The nodes before this one should have led, and have not. Presume the first of them lost, unless it has sent
        a heartbeat since the last look during this silence: then it is alive, and cannot lead."""
        state = self.state or State()
        line = [key for key in state.busy if key not in state.draining]
        seated = set(line)
        line += [key for key in keys if key not in seated]
        before = line[: line.index(self.key)] if self.key in line else []
        self.seen = self.seen.presumed_late(before[:1], before[1:], now)
        self._roster_stale = True
        self.election = replace(self.election, succession_read=True)

    def _announced(self, entry: Entry, older: int, now: Instant) -> None:
        if self.registered is None:
            self._beat_at = later(now, self.settings.keep_alive_interval)
        self.election = replace(self.election, older=older)
        self.registered = self._stood = entry
        self._roster_stale = True

    def _withdrawn(self, key: str) -> None:
        self._roster_stale = True
        self.seen = self.seen.forgets(key)
        if key == self.key:
            self.registered = self._stood = None
            self._may_stand = False
            self.election = self.election.steps_back()

    def _beaten(self, operation: Beat, count: int | None, now: Instant) -> None:
        """The leader looks at beats once in an interval, even when no node came or went."""
        self._roster_stale = True
        election, place = self.election, self._place
        if election.stepping_in and operation.leading:
            self._note("info", "leads now", reason=election.stepping_in)
            self.election = election.counted(count, now, place).leads()
            return
        self._beats += 1
        self._beat_at = later(now, self.settings.keep_alive_interval)
        if election.leading:
            self.election = election.counted(count, now, place)
        elif count is not None:
            self.election = election.seen(count, now, place)

    def _come_back(self, now: Instant) -> None:
        """The store has dropped the entry of this node, which lives, and perhaps those of others."""
        self._note("warning", "entry dropped")
        self._expect_all_back(now)
        self._unregister()

    def _unregister(self) -> None:
        """The entry has to be written again. The one that stood was written when the node waited for a round that it is
        in now: a store that has lost that round would seat the node in another one while its workers run."""
        self.registered = None
        if self._stood is None or not self.membership.round:
            return
        in_its_round = replace(self.entry, after=self.membership.round, waits=False)
        if not self.membership.joins:
            self.entry = self._stood = in_its_round
        elif self._stood.after != self.entry.after:
            self._stood = in_its_round

    def _has_lost_data(self, now: Instant) -> None:
        """A beat finds out whether the entry of this node is lost, too."""
        self._expect_all_back(now)
        self._beat_at = now

    def _expect_all_back(self, now: Instant) -> None:
        """The store was away, or slept, and may have dropped all entries as it drops those of nodes that do not beat.
        So until the nodes have had time to announce themselves again, as this node does, none is lost for having no
        entry. None could beat or lead meanwhile, either."""
        self.seen, self.election = self.seen.after_outage(now), self.election.after_outage(now)
        if self.state is not None and self.state.round:
            self.seen = self.seen.all_back_by(later(now, self.settings.failure_timeout))

    def _wait_longer(self, seconds: Duration) -> None:
        """Time in which no node could come back does not count as time that members had for it."""
        if self._enough is not None:
            self._enough = (self._enough[0], later(self._enough[1], seconds))

    def _extend_join(self, now: Instant) -> None:
        """The deadline of a join is for gathering: it begins anew when the round that the node waited for ends."""
        if self._waits:
            join_by = later(now, self.settings.timeout.join.total_seconds())
            self.membership = replace(self.membership, join_by=join_by)

    # -- what it does next

    def next(self, now: Instant, vacant: bool = False) -> Operation | Rest:
        """One operation, to be answered before `next` is asked again, or a rest. `vacant`: the backend says that the
        leader has gone."""
        if self.registered is not None and (vacant or self.election.vacant_since is not None):
            self.election = self.election.saw_vacant(vacant, now, self._place)
        operation = self._operation(now) if self.connection.may_try(now) else None
        if operation is None:
            if self.connection.retry_at is None and not self._requests:  # else there is something left to do
                self._all_is_well()
            return self._rest(now)
        self._asked, self._asked_at = operation, now
        return operation

    def _end_operation(self, now: Instant) -> tuple[Operation | None, Instant]:
        taken = self._asked, now if self._asked_at is None else self._asked_at
        self._asked = self._asked_at = None
        return taken

    def _all_is_well(self) -> None:
        if self.connection.logged:
            self._note("info", "store is back")
        self.connection, self.fault, self.election = self.connection.rests(), None, self.election.worked()

    def _operation(self, now: Instant) -> Operation | None:
        # Beats come first, so that the others do not call this node gone for anything else that goes wrong.
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
        return Beat(self.key, self.election.leading, self.election.looks(self._place, self._beats))

    def _restore(self) -> Operation | None:
        """After an outage the node first restores its entry, even when the state cannot be read."""
        if not self._registers or self.registered is not None or self._stood is None:
            return None
        return self._announce(self._stood)

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
        """The first request that is not done. A failure is reported before the node is ready for the next round:
        otherwise the round would end for another cause."""
        while self._requests and now >= self._requests_at:
            request = self._requests[0]
            self._asked_for = "request"
            if isinstance(request, Amend):
                operation = self._amended(request, now)
                if operation is not None:
                    return operation
            elif isinstance(request, HandOver):
                return request
            elif self._registers or not self._may_stand:
                self._settle()
            else:
                return Withdraw(self.key)
        self._asked_for = ""
        return None

    def _amended(self, request: Amend, now: Instant) -> Operation | None:
        """What changes the state, or reports to the leader what should change in it. None: the request is settled, or
        waits until `_requests_at`."""
        state = self.state or State()
        try:
            changed = request.change(state, *request.arguments)
        except Exception as error:  # noqa: BLE001 - one request that cannot be carried out must not end the beats
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
        elif leaves and self._refusals < _ATTEMPTS:  # also for all others who wait for the leader
            changed = request.change(with_reports(self.seen.roster, state), *request.arguments)
            return WriteState(self._counted(changed), self.token)
        else:
            self._settle()
        return None

    def _counted(self, changed: State) -> State:
        """As it is written. A round that it forms gets an id that no other write has."""
        if changed.round.number > (self.state or State()).round.number:
            self._rounds_formed += 1
            changed = replace(changed, round=changed.round._replace(by=f"{self.key}.{self._rounds_formed}"))
        return replace(changed, serial=changed.serial + 1, origin=changed.origin or self.key)

    def _report(self, **facts: Any) -> None:
        """In the entry; see `Reported`."""
        reported, round_id = self.entry.reported, self.membership.round
        before = reported if reported is not None and reported.round == round_id else Reported(round_id)
        self.entry = replace(self.entry, reported=replace(before, **facts))

    def _settle(self, fault: Exception | None = None) -> None:
        request, *others = self._requests
        self._requests, self._request_fails_since, self._refusals = tuple(others), None, 0
        self._settled = (*self._settled, (request, fault))

    def _register(self) -> Operation | None:
        waits = any(isinstance(request, Amend) for request in self._requests)
        if waits or not self._registers:
            return None
        state, reported = self.state or State(), self.entry.reported
        ended = sorted(filter(state.seated, self.seen.ended)) if self._leaves_to_leader(state) else []
        ended.sort(key=lambda key: key not in state.busy)  # an entry has room for some
        if ended != list(reported.ended if reported else ()):
            self._report(ended=tuple(ended))
        return None if self.registered == self.entry else self._announce(self.entry)

    def _announce(self, entry: Entry) -> Operation:
        self._may_stand = True
        return Announce(entry)

    def _step_in(self) -> Operation | None:
        """Counted before anything is written: what this node writes may move the next node up, and it must not find
        that the leaders' counter stands still."""
        is_next = self._place == 1  # and must know whether the first one beats
        recounts = self.election.recount and (is_next or goes_by_age(self.state or State(), self.key))
        if self.registered is None or not (self.election.stepping_in or recounts):
            return None
        if self.election.succession_read and self.election.stepping_in:
            return Beat(self.key, leading=True, look=True)
        return self._look()

    def _look(self) -> Operation:
        self._roster_stale = False
        self._looking, self._looks = (*self._looking, *self._looks), ()
        return ReadRoster()

    def _work(self, now: Instant) -> Operation | None:
        """The leader's work. The first node in succession order leads without waiting for silence."""
        if self._may_lead(now):
            self.election = self.election.leads()
            self._roster_stale = True
        self._asked_for = "work"
        state = self.state or State()
        tells = self.seen.to_tell(state) and not self._leaves_to_leader(state)
        if self._looks or (self._roster_stale and (tells or self.wants_roster)):
            return self._look()
        if not (self.election.leading or tells):
            return None
        if self._decide_at is not None and now >= self._decide_at:
            self._judge(now)
        dead = self.seen.dead(state, now)
        if isinstance(self._decision, Write) and dead not in self.seen.ended:
            return WriteState(self._counted(self._decision.state), self.token)
        return None if dead is None else Withdraw(dead)

    def _leaves_to_leader(self, state: State) -> bool:
        """Whether the leader puts into the state which agents have ended, as this node reports: the round is over
        already, and the leader has not ended itself."""
        first = next((key for key in state.busy if key not in state.draining), None)
        return not (state.open or self.election.leading or first in (None, self.key) or first in self.seen.ended)

    def _may_lead(self, now: Instant) -> bool:
        waits = self.election.leading or self.registered is None or self.election.barred(now)
        return not waits and self._place == 0

    @property
    def _place(self) -> int:
        return position(self.state or State(), self.key, self.election.older)

    def _judge(self, now: Instant) -> None:
        """Decide by what is seen; carried out if this node leads."""
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

    def _rest(self, now: Instant) -> Rest:
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
        return Rest(min(times), self.wants_roster)

    @property
    def wants_roster(self) -> bool:
        """Whether it wants to hear of changes of the roster."""
        return self.election.leading or self.lingers

    @property
    def lacking(self) -> int:
        """After how many announcements a leader wants to wake while nodes gather: half of those still missing, so that
        a thousand nodes wake it ten times and not a thousand. It also looks with every beat."""
        wait = self.gathering
        if wait is None or self.lingers or (self.state is not None and self.state.open):
            return 1
        return max(1, (len(wait.missing) or wait.wanted - wait.joined) // 2)

    # -- what it answers

    @property
    def join_status(self) -> JoinStatus:
        """How far it has come, as a node that wants the next round."""
        return join_status(self.state or State(), self.key, self.entry.after, self.settings.max_nodes)

    def obstacle(self, now: Instant) -> RendezvousError | ElasticError | None:
        """Why the node does not come to the round that it wants, and never will; None while it may."""
        member, state = self.membership, self.state
        if member.shut:
            return RendezvousGracefulExitError("the rendezvous was shut down on this node")
        if member.left:
            return RendezvousGracefulExitError("this node left the rendezvous while it was joining")
        if member.running:
            return None
        if isinstance(self.fault, ElasticError):
            return self.fault
        if member.joins and state is not None and self.join_status.is_final:
            had, run_id = bool(member.round), self.settings.run_id
            return messages.no_place(state, self.join_status, self.key, run_id, member.was_closed, had)
        due = self.join_deadline
        if due is None or now < due:
            return None
        if state is None:
            return messages.no_contact(self.connection.outage, self.fault, self.settings)
        if self._waits or self.connection.outage is not None or self.fault is not None:
            return messages.no_answer(self.connection.outage, self.fault, self.settings.timeout.join.total_seconds())
        return messages.too_few(self.settings, self.progress())

    @property
    def join_deadline(self) -> Instant | None:
        """Until when it waits for the round; None while it waits for another round to end, and the store answers. A
        store that has never answered is given less time than nodes that may still come: the endpoint may be wrong."""
        if self.state is None:
            return min(self.membership.join_by, self.membership.contact_by)
        if not self._waits:
            return self.membership.join_by
        silent = self.connection.silent_since(self._asked_at)
        return None if silent is None else later(silent, self.settings.timeout.join.total_seconds())

    @property
    def _waits(self) -> bool:
        """Whether it waits for a round to end."""
        return self.membership.joins and self.connection.outage is None and self.join_status.waits_for_others

    def verdict(self, now: Instant, grace: Duration = 0.0) -> Verdict | None:
        """What has become of the round that it is in; None while that goes on. `grace`: see `RosterBackend`."""
        if not self.membership.running or self.state is None:
            return None
        found = verdict(self.state, self.key, self.membership.round)
        if found is None:
            since = self.connection.silent_since(self._asked_at)
            self.connection, cut_off = self.connection.fenced(self._asked_at, grace, now)
            if cut_off and since is not None:
                found = messages.fenced(now - since, self.settings.failure_timeout, self.connection.outage)
                self.membership = replace(self.membership, cut_off=True)
        return found

    def waiting(self) -> int:
        """How many waiting nodes the next round has room for, as last seen."""
        state = self.state or State()
        room = self.settings.max_nodes - (len(state.busy) if state.open else 0)
        return min(len(waiting(self.seen.roster, state)), max(room, 0))

    def progress(self) -> str:
        """Which nodes are there and which are missing, in one line."""
        return messages.progress(self.state, self.gathering, self.seen.roster, self.settings, self.key)

    @property
    def neighbour(self) -> Seat | None:
        """Whose end it is to tell: the seat of a member with a lifeline."""
        member, state = self.membership, self.state
        seat = None if state is None or member.left or member.shut else state.neighbour(self.key)
        return seat if seat is not None and seat.lifeline else None

    @property
    def host(self) -> str:
        """The key of rank 0 in the newest round; empty before the first."""
        return self.state.seats[0].key if self.state is not None and self.state.seats else ""

    def suspects(self, most: int) -> tuple[Seat, ...]:
        """Seats of so many members of the last round at most, if that failed as if some could not reach each other; or
        of the round that this node is not in because it could not reach them."""
        state = self.state or State()
        failed = state.end is not None and state.end.awaits_judgement
        mine = state.round == self.membership.round and state.seated(self.key)
        if not (self.entry.unreachable if state.open else failed and mine):
            return ()
        rank, size = state.rank(self.key) or 0, len(state.seats)
        ring = dict.fromkeys([0, *((rank + step) % size for step in range(1, most))])
        return tuple(seat for seat in (state.seats[place] for place in ring) if seat.key != self.key)

    def notice(self, now: Instant) -> Instant:
        """Note an outage that has lasted for some time; also while an attempt hangs. Returns when to look again."""
        since = self.connection.silent_since(self._asked_at)
        if since is not None and self.connection.is_news(since, now):
            reason = str(self.connection.outage or "it does not answer")
            self._note("warning", "store out of reach", seconds=round(now - since, 1), reason=reason)
            self.connection = replace(self.connection, logged=True)
        return self.connection.next_look(since, now)

    def fence_at(self, now: Instant, grace: Duration) -> Instant:
        """When it will have fenced itself off unless the store answers."""
        return self.connection.fence_at(self._asked_at, grace, now)

    def stop_by(self, now: Instant, grace: Duration) -> Instant | None:
        """By when workers of its last round have to be gone; None: they may take as long as they need. Others may go on
        without this node once it is fenced: its workers have half a beat then. If it was called gone, or a round has
        formed without it, they have no time. For a node that has left the others wait until it says that it is done;
        the store may leave before that, because the whole job was asked to end."""
        state, member = self.state or State(), self.membership
        if state.closed:
            return None
        if state.round != member.round or (self.key in state.gone and not member.left):
            return LONG_AGO
        if member.left:
            return None
        return later(self.fence_at(now, grace), self.settings.keep_alive_interval / 2)

    def take_notes(self) -> tuple[Note, ...]:
        """Lines for the log since the last call."""
        notes, self._notes = self._notes, ()
        return notes

    def take_settled(self) -> tuple[tuple[Request, Exception | None], ...]:
        """Requests that were carried out since the last call, or that never can be, with the reason."""
        settled, self._settled = self._settled, ()
        return settled

    def _note(
        self,
        level: Literal["debug", "info", "warning"],
        event: EventName,
        trace: Exception | None = None,
        **fields: Any,
    ) -> None:
        self._notes = (*self._notes, Note(level, event, fields, trace))


def _as_it_is(state: State) -> State:
    return state


def _given_up(state: State, key: str, round_id: RoundId, cause: Cause, by: str, reason: str) -> State:
    """Where others have failed meanwhile, they may have lost a peer by the fence of this node. What failed here as well
    may not have."""
    if state.round != round_id or not state.seated(key) or key in state.done:
        return state
    if state.open:
        return model.ended(state, cause, by, reason)
    own = state.end is None or any(report.key == key for report in state.end.reports)
    return state if own or cause is not Cause.LOST else model.followed(state, cause, by, reason)
