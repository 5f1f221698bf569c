"""State and entries as bytes: JSON with a version, never pickle; behind that of a state follow its seats. What comes
from the network is checked field by field and bounded; what cannot be ours is a RendezvousStateError that says what was
expected and what was found."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_core.errors import ProcessFailure, RendezvousStateError
from elastic_core.rendezvous.entry import Entry
from elastic_core.rendezvous.seats import Seats, check, packed, text_of, unpacked
from elastic_core.rendezvous.state import Cause, Closed, End, Report, State

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
LONGEST_STATE = 16 * 1024 * 1024
LONGEST_ENTRY = 64 * 1024
_LONGEST_TEXT = 4096
_LONGEST_STACK = 8192  # characters; every node of the job reads it
_MOST_REPORTS = 8
_MOST_FAILURES = 8
_TAIL_LINES = 20
_LONGEST_LINE = 400  # with all of these at their bounds a state stays below LONGEST_STATE: what is written can be read
_GREATEST = 2**63
_UNFIT = (KeyError, TypeError, ValueError, AttributeError, RecursionError)

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
    "after": int,
    "done": int,
}


def encoded_state(state: State) -> bytes:
    """The state as bytes: a line of JSON, then the seats."""
    document = {
        "version": VERSION,
        "round": state.round,
        "open": state.open,
        "seats": len(state.seats),
        "gone": state.gone,
        "done": state.done,
        "draining": state.draining,
        "end": state.end and _end(state.end),
        "restarts": state.restarts,
        "max_restarts": state.max_restarts,
        "closed": state.closed and [state.closed.by, state.closed.reason, state.closed.succeeded],
        "reason": state.reason,
        "absent": state.absent,
        "refused": state.refused,
        "min_nodes": state.min_nodes,
        "max_nodes": state.max_nodes,
        "serial": state.serial,
    }
    return _dumped(document) + b"\n" + packed(text_of(state.seats))


def decoded_state(data: bytes) -> State:
    """The state that the bytes hold.

    Raises:
        RendezvousStateError: they are of another version, or not ours.
    """
    _check_length(data, LONGEST_STATE, "state")
    head, _, rest = data.partition(b"\n")
    document = _loaded(head, "state")
    try:
        closed, end = document["closed"], document["end"]
        return State(
            round=_typed(document["round"], int),
            open=_typed(document["open"], bool),
            seats=_seats_of(rest, _typed(document["seats"], int)),
            gone=_texts(document["gone"]),
            done=_texts(document["done"]),
            draining=_texts(document["draining"]),
            end=None if end is None else _end_of(end),
            restarts=_typed(document["restarts"], int),
            max_restarts=_typed(document["max_restarts"], int),
            closed=None if closed is None else _closed_of(closed),
            reason=_typed(document["reason"], str),
            absent=tuple((_typed(key, str), _typed(number, int)) for key, number in document["absent"]),
            refused=tuple((_typed(key, str), _typed(why, str)) for key, why in document["refused"]),
            min_nodes=_typed(document["min_nodes"], int),
            max_nodes=_typed(document["max_nodes"], int),
            serial=_typed(document["serial"], int),
        )
    except _UNFIT as error:
        _refuse("state", f"a field that is missing or of the wrong type ({error})", data, error)


def _seats_of(data: bytes, count: int) -> Seats:
    text = unpacked(data, LONGEST_STATE)
    check(text)
    seats = Seats(text)
    if len(seats) != count:
        raise ValueError(f"expected {count} seats, found {len(seats)}")
    return seats


def encoded_entry(entry: Entry) -> bytes:
    """The entry as bytes."""
    return _dumped({"version": VERSION, **{name: _plain(getattr(entry, name)) for name in _ENTRY_TYPES}})


def decoded_entry(data: bytes) -> Entry:
    """The entry that the bytes hold.

    Raises:
        RendezvousStateError: they are of another version, or not ours.
    """
    _check_length(data, LONGEST_ENTRY, "entry")
    document = _loaded(data, "entry")
    try:
        values = {name: _typed(document[name], kind) for name, kind in _ENTRY_TYPES.items()}
        labels = {_typed(name, str): _typed(value, str) for name, value in values.pop("labels").items()}
        if values["local_world_size"] < 1:
            raise ValueError(f"expected at least one worker, found {values['local_world_size']}")
        return Entry(**values, labels=labels)
    except _UNFIT as error:
        _refuse("entry", f"a field that is missing or of the wrong type ({error})", data, error)


def _check_length(data: bytes, longest: int, what: str) -> None:
    if len(data) > longest:
        _refuse(what, f"{len(data)} bytes, more than the {longest} that it may have", data)


def _loaded(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(what, "what is no JSON", data, error)
    if not isinstance(document, dict):
        _refuse(what, f"JSON that is no object but {type(document).__name__}", data)
    if type(document.get("version")) is not int or document["version"] != VERSION:
        _refuse(what, f"version {_shown(document.get('version'))}", data)
    return document


def _refuse(what: str, found: str, data: bytes, error: Exception | None = None) -> NoReturn:
    raise RendezvousStateError(
        f"expected a rendezvous {what} of version {VERSION}, found {found}: {data[:80]!r}; every node of a job needs "
        "the same version of elastic-core, and no other program may use the same endpoint and --rdzv-id"
    ) from error


def _dumped(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else value


def _typed(value: Any, kind: type | tuple[type, ...]) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise TypeError(f"expected {' or '.join(k.__name__ for k in kinds)}, found {_shown(value)}")
    if isinstance(value, (int, float)) and not -_GREATEST <= value < _GREATEST:  # neither is NaN
        raise ValueError(f"expected a number of 64 bits, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Of what the network brought only the beginning: it can be deep, long, or a number that Python will not print."""
    return repr(value)[:60] if isinstance(value, (str, float, bool, type(None))) else type(value).__name__


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_typed(value, str) for value in _typed(values, list))


def _end(end: End) -> dict[str, Any]:
    return {
        "cause": end.cause.value,
        "by": end.by,
        "reason": end.reason[:_LONGEST_TEXT],
        "counted": end.counted,
        "reports": [_report(report) for report in _told(end.reports)],
    }


def _told(reports: tuple[Report, ...]) -> list[Report]:
    """As many as a state may hold, in their order; what is certain is kept before what is not."""
    kept = sorted(reports, key=lambda report: not report.certain)[:_MOST_REPORTS]
    return [report for report in reports if report in kept]


def _end_of(item: Any) -> End:
    reports = tuple(_report_of(report) for report in item["reports"])
    by, reason = _typed(item["by"], str), _typed(item["reason"], str)
    return End(Cause(item["cause"]), by, reason, reports, _typed(item["counted"], bool))


def _closed_of(item: Any) -> Closed:
    by, reason, succeeded = item
    return Closed(_typed(by, str), _typed(reason, str), _typed(succeeded, bool))


def _report(report: Report) -> list[Any]:
    failures = [_failure(failure) for failure in report.failures[:_MOST_FAILURES]]
    return [report.key, report.node, report.certain, failures]


def _report_of(item: Any) -> Report:
    key, node, certain, failures = item
    found = tuple(_failure_of(failure) for failure in failures)
    return Report(_typed(key, str), _typed(node, str), found, _typed(certain, bool))


def bounded(failure: ProcessFailure) -> ProcessFailure:
    """The failure as the others will see it: its texts cut to a bearable length, the end being what counts; of a stack
    it is the beginning, and only of what came first."""
    values = {item.name: getattr(failure, item.name) for item in fields(failure)}
    texts = {name: value[-_LONGEST_TEXT:] for name, value in values.items() if isinstance(value, str)}
    tail = tuple(line[:_LONGEST_LINE] for line in failure.stderr_tail[-_TAIL_LINES:])
    stack = failure.stack[:_LONGEST_STACK] if failure.caused_by is None else ""
    return ProcessFailure(**{**values, **texts, "stderr_tail": tail, "error_file_data": {}, "stack": stack})


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    shown = {name: getattr(failure, name) for name in _FAILURE_TYPES}
    return {**shown, "stderr_tail": list(failure.stderr_tail)}


def _failure_of(item: Any) -> ProcessFailure:
    values = {name: _typed(item[name], kind) for name, kind in _FAILURE_TYPES.items()}
    return ProcessFailure(**values, stderr_tail=_texts(item["stderr_tail"]))
