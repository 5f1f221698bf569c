"""Encodes and decodes states and entries as versioned JSON, never as pickle. In an encoded state, the packed seats
follow the JSON. Decoding checks every field, because the data comes from the network, and raises RendezvousStateError
if the data is invalid. Sizes are limited, because some stores accept only small values, for example up to 1.5 MiB in
etcd."""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_core.errors import ProcessFailure, RendezvousStateError
from elastic_core.interfaces.health import StopStatus
from elastic_core.parsing import LONGEST_NAME
from elastic_core.rendezvous.model import (
    MOST_REPORTS,
    NOBODY,
    Cause,
    Closed,
    End,
    Entry,
    Report,
    Reported,
    RoundId,
    Seats,
    State,
)
from elastic_core.rendezvous.seal import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration

VERSION = 9
LONGEST_STATE = 16 * 1024 * 1024
LONGEST_ENTRY = 128 * 1024
_MOST_UNREACHABLE = 64
_LONGEST_TEXT = 4096
_LONGEST_STACK = 8192  # characters; limited because every node in the job reads the stack
_MOST_FAILURES = 8
_TAIL_LINES = 20
_LONGEST_LINE = 400
_ALL_FAILURES = 64 * 1024  # characters for all failures together, without names
_IN_ENTRY = 4 * 1024  # the same limit for an entry, in which a character may take 12 bytes
_FAILURES_IN_ENTRY = 2
_MOST_ITEMS = 2**16
_GREATEST = 2**63
_LATEST = 2**37  # seconds since the epoch, some 4,000 years from now
_UNFIT = (LookupError, TypeError, ValueError, AttributeError, RecursionError)

_FAILURE_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "local_rank": int,
    "pid": int,
    "exitcode": int,
    "error_file": str,
    "message": str,
    "timestamp": (int, float),
    "global_rank": int,
    "role": str,
    "node": str,
    "round": int,
    "reason": str,
    "caused_by": (int, type(None)),
    "curable": bool,
    "stack": str,
}
_ENTRY_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "key": str,
    "node": str,
    "host": str,
    "address": str,
    "port": int,
    "role": str,
    "local_world_size": int,
    "rank_hint": (int, type(None)),
    "max_restarts": int,
    "labels": dict,
    "stop_timeout": (int, float),
    "after": list,
    "waits": bool,
    "done": list,
    "reported": (list, type(None)),
    "unreachable": list,
    "lifeline": int,
    "stop": (list, type(None)),
}
_NAMES = ("key", "node", "host", "address", "role")


def encoded_state(state: State) -> bytes:
    """Encode the state as a line of JSON, followed by the packed seats."""
    document = {
        "version": VERSION,
        "round": state.round,
        "open": state.open,
        "seats": len(state.seats),
        "gone": [state.rank(key) for key in state.gone],
        "done": [state.rank(key) for key in state.done],
        "draining": dict(state.draining),
        "stopped": state.stopped,
        "end": state.end and _end(state.end),
        "restarts": state.restarts,
        "max_restarts": state.max_restarts,
        "closed": state.closed and [state.closed.by, state.closed.reason[:_LONGEST_TEXT], state.closed.succeeded],
        "reason": state.reason[:_LONGEST_TEXT],
        "refused": state.refused,
        "min_nodes": state.min_nodes,
        "max_nodes": state.max_nodes,
        "serial": state.serial,
        "origin": state.origin,
    }
    return _dumped(document) + b"\n" + state.seats.packed


def decoded_state(data: bytes, known: Seats = NOBODY) -> State:
    """Decode a state. `known` holds the seats of an earlier state, which are reused if they have not changed. Raises
    RendezvousStateError if the bytes are not a valid state."""
    _check_length(data, LONGEST_STATE, "state")
    head, _, rest = data.partition(b"\n")
    document = _loaded(head, "state")
    try:
        closed, end = document["closed"], document["end"]
        seats = known if rest == known.packed else Seats.unpacked(rest, LONGEST_STATE)
        if len(seats) != _typed(document["seats"], int):
            raise ValueError(f"expected {document['seats']} seats, found {len(seats)}")
        keys = list(seats.keys) if document["gone"] or document["done"] else []
        return State(
            round=_round_of(document["round"]),
            open=_typed(document["open"], bool),
            seats=seats,
            gone=tuple(keys[_natural(rank)] for rank in _items(document["gone"])),
            done=tuple(keys[_natural(rank)] for rank in _items(document["done"])),
            draining=_draining_of(document["draining"]),
            stopped=_round_of(document["stopped"]),
            end=None if end is None else _end_of(end),
            restarts=_natural(document["restarts"]),
            max_restarts=_natural(document["max_restarts"]),
            closed=None if closed is None else _closed_of(closed),
            reason=_text(document["reason"]),
            refused=tuple((_name(key), _text(why)) for key, why in _items(document["refused"])),
            min_nodes=_natural(document["min_nodes"]),
            max_nodes=_natural(document["max_nodes"]),
            serial=_natural(document["serial"]),
            origin=_name(document["origin"]),
        )
    except _UNFIT as error:
        _refuse("state", f"a state with a missing or invalid field ({error})", data, error)


def encoded_entry(entry: Entry) -> bytes:
    values = {name: getattr(entry, name) for name in _ENTRY_TYPES}
    values["labels"] = dict(entry.labels)
    values["stop"] = entry.stop and astuple(entry.stop)
    if (reported := entry.reported) is not None:
        failure = reported.failure and _report(reported.failure, _FAILURES_IN_ENTRY, _IN_ENTRY)
        values["reported"] = (
            reported.round,
            failure,
            reported.leaves[:_LONGEST_TEXT],
            reported.ended[:_MOST_UNREACHABLE],
        )
    return _dumped({"version": VERSION, **values})


def decoded_entry(data: bytes, key: str | None = None) -> Entry:
    """Decode an entry. Raises RendezvousStateError if the bytes are not a valid entry or, if `key` is given, the entry
    has a different key."""
    _check_length(data, LONGEST_ENTRY, "entry")
    document = _loaded(data, "entry")
    try:
        values = {name: _typed(document[name], kind) for name, kind in _ENTRY_TYPES.items()}
        labels = {_text(name): _text(value) for name, value in values.pop("labels").items()}
        values["unreachable"] = _names(values["unreachable"])[:_MOST_UNREACHABLE]
        values["after"], values["done"] = _round_of(values["after"]), _round_of(values["done"])
        values["reported"] = None if values["reported"] is None else _reported_of(values["reported"])
        values["stop"] = None if values["stop"] is None else _stop_of(values["stop"])
        entry = Entry(**values, labels=labels)
        check_entry(entry)
    except _UNFIT as error:
        _refuse("entry", f"an entry with a missing or invalid field ({error})", data, error)
    if key is not None and entry.key != key:
        raise RendezvousStateError(f"expected the entry of {key!r}, found that of {entry.key!r}")
    return entry


def check_entry(entry: Entry) -> None:
    """Raise ValueError if the entry contains a name or a number that other nodes would reject."""
    for name in _NAMES:
        text = getattr(entry, name)
        if len(text) > LONGEST_NAME or not text.isprintable():
            raise ValueError(f"expected a {name} of at most {LONGEST_NAME} printable characters, found {text[:60]!r}")
    if not 1 <= entry.local_world_size < 2**31:
        raise ValueError(f"expected at least one worker, found {entry.local_world_size}")
    if not 0 <= entry.port < 2**16 or not 0 <= entry.lifeline < 2**16:
        raise ValueError(f"expected ports from 0 to {2**16 - 1}, found {entry.port} and {entry.lifeline}")
    for number in (entry.max_restarts, entry.after.number, entry.done.number, entry.stop_timeout):
        if not 0 <= number < _GREATEST:
            raise ValueError(f"expected numbers from 0 to {_GREATEST - 1}, found {_shown(number)}")


def _natural(value: Any) -> int:
    number: int = _typed(value, int)
    if number < 0:
        raise ValueError(f"expected a number of 0 or more, found {number}")
    return number


def _round_of(item: Any) -> RoundId:
    number, by = item
    return RoundId(_natural(number), _name(by))


def _items(values: Any) -> list[Any]:
    items: list[Any] = _typed(values, list)
    if len(items) > _MOST_ITEMS:
        raise ValueError(f"expected at most {_MOST_ITEMS} items, found {len(items)}")
    return items


def _name(value: Any) -> str:
    text: str = _typed(value, str)
    if len(text) > 2 * LONGEST_NAME or not text.isprintable():
        raise ValueError(f"expected at most {2 * LONGEST_NAME} printable characters, found {_shown(text)}")
    return text


def _names(values: Any) -> tuple[str, ...]:
    return tuple(_name(value) for value in _items(values))


def _draining_of(item: Any) -> dict[str, Duration | None]:
    pairs = _items(list(_typed(item, dict).items()))
    return {_name(key): None if most is None else float(_typed(most, (int, float))) for key, most in pairs}


def _text(value: Any, longest: int = 4 * _LONGEST_TEXT) -> str:
    """Return user-facing text, truncated if it is too long. Lone surrogates are replaced because they cannot be
    encoded."""
    text: str = _typed(value, str)
    return text[:longest].encode("utf-8", "replace").decode()


def _check_length(data: bytes, longest: int, what: str) -> None:
    if len(data) > longest:
        _refuse(what, f"{len(data)} bytes, which exceeds the limit of {longest}", data)


def _loaded(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(what, "data that is not JSON", data, error)
    if not isinstance(document, dict):
        _refuse(what, f"a JSON {type(document).__name__} instead of an object", data)
    if type(document.get("version")) is not int or document["version"] != VERSION:
        _refuse(what, f"version {_shown(document.get('version'))}", data)
    return document


def _refuse(what: str, found: str, data: bytes, error: Exception | None = None) -> NoReturn:
    advice = (
        "use the same version of elastic-core on every node, and make sure that no other program uses this endpoint "
        "and --rdzv-id"
    )
    if data.startswith(MARK):
        found, advice = f"a signed {what}, but this node has no secret", "every node needs the same --rdzv-secret-file"
    raise RendezvousStateError(
        f"expected a rendezvous {what} of version {VERSION}, found {found}: {data[:80]!r}; {advice}"
    ) from error


def _dumped(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _fields(failure: ProcessFailure, longest: int) -> dict[str, Any]:
    """Return the fields of the failure, with at most `longest` characters of text in total."""
    shown = {name: getattr(failure, name) for name in _FAILURE_TYPES}
    shown = {name: value[:LONGEST_NAME] if isinstance(value, str) else value for name, value in shown.items()}
    share = longest // 4
    tail = [line[: share // _TAIL_LINES] for line in failure.stderr_tail]
    return {**shown, "message": failure.message[-share:], "stack": failure.stack[: 2 * share], "stderr_tail": tail}


def _typed(value: Any, kind: type | tuple[type, ...]) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise TypeError(f"expected {' or '.join(k.__name__ for k in kinds)}, found {_shown(value)}")
    if isinstance(value, (int, float)) and not -_GREATEST <= value < _GREATEST:  # neither is NaN
        raise ValueError(f"expected a 64-bit number, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Return a short form of a value for a message, because a value from the network may be huge or deeply nested."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:60] if isinstance(value, (str, float, int, type(None))) else type(value).__name__


def _end(end: End) -> dict[str, Any]:
    reports = end.reports[:MOST_REPORTS]
    return {
        "cause": end.cause.value,
        "by": end.by[:_LONGEST_TEXT],
        "reason": end.reason[:_LONGEST_TEXT],
        "counted": end.counted,
        "reports": [_report(report, _MOST_FAILURES, _ALL_FAILURES // len(reports)) for report in reports],
    }


def _end_of(item: Any) -> End:
    reports = tuple(_report_of(report) for report in _items(item["reports"]))
    by, reason = _text(item["by"]), _text(item["reason"])
    return End(Cause(item["cause"]), by, reason, reports, _typed(item["counted"], bool))


def _closed_of(item: Any) -> Closed:
    by, reason, succeeded = item
    return Closed(_text(by), _text(reason), _typed(succeeded, bool))


def _report(report: Report, most: int, longest: int) -> list[Any]:
    """Return the fields of the report, with at most `most` failures and `longest` characters of text."""
    failures = report.failures[:most]
    shown = [_fields(failure, longest // len(failures)) for failure in failures]
    return [report.key, report.node, shown, report.certain, report.number]


def _report_of(item: Any) -> Report:
    key, node, failures, certain, number = item
    found = tuple(_failure_of(failure) for failure in _items(failures))
    return Report(_name(key), _text(node), found, _typed(certain, bool), _natural(number))


def _reported_of(item: Any) -> Reported:
    round_id, failure, leaves, ended = item
    report = None if failure is None else _report_of(failure)
    return Reported(_round_of(round_id), report, _text(leaves), _names(ended)[:_MOST_UNREACHABLE])


def _stop_of(item: Any) -> StopStatus:
    number, step, since, deadline, *ranks = item
    if not all(0 <= _typed(time, (int, float)) < _LATEST for time in (since, deadline)):
        raise ValueError(f"expected times in seconds since the epoch, found {since} and {deadline}")
    saved, unsaved = (tuple(_natural(rank) for rank in _items(some)) for some in ranks)
    return StopStatus(_natural(number), _natural(step), float(since), float(deadline), saved, unsaved)


def bounded(failure: ProcessFailure) -> ProcessFailure:
    """Return the failure in the shortened form that other nodes see. Long strings keep only their end, and a long stack
    keeps only its start. The stack is dropped if another failure caused this one."""
    values = {item.name: getattr(failure, item.name) for item in fields(failure)}
    texts = {name: value[-_LONGEST_TEXT:] for name, value in values.items() if isinstance(value, str)}
    tail = tuple(line[:_LONGEST_LINE] for line in failure.stderr_tail[-_TAIL_LINES:])
    stack = failure.stack[:_LONGEST_STACK] if failure.caused_by is None else ""
    return ProcessFailure(**{**values, **texts, "stderr_tail": tail, "error_file_data": {}, "stack": stack})


def _failure_of(item: Any) -> ProcessFailure:
    values = {name: _typed(item[name], kind) for name, kind in _FAILURE_TYPES.items()}
    values = {name: _text(value) if isinstance(value, str) else value for name, value in values.items()}
    return ProcessFailure(**values, stderr_tail=tuple(_text(line) for line in _items(item["stderr_tail"])))
