"""Values to etcd's messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Committed, Delete, Field, Get, KeyValue, Order, Put, Range, only_writes

if TYPE_CHECKING:
    from elastic_etcd.client.values import Compare, Operation, Transaction

_ASCENDING = 1
_TARGETS = {Order.KEY: 0, Order.CREATED: 2}
_COMPARED = {Field.VERSION: 0, Field.CREATED: 1, Field.MODIFIED: 2, Field.VALUE: 3, Field.LEASE: 4}


def range_request(get: Get) -> Any:
    """The request to read."""
    return rpc().RangeRequest(**_range_fields(get))


def txn_request(transaction: Transaction) -> Any:
    """The request of a transaction."""
    return rpc().TxnRequest(
        compare=[_compare(condition) for condition in transaction.conditions],
        success=[_operation(operation) for operation in transaction.then],
        failure=[_operation(operation) for operation in transaction.otherwise],
    )


def key_value(message: Any) -> KeyValue:
    """A key as a message tells it, in an answer or an event."""
    return KeyValue(
        message.key, message.value, message.create_revision, message.mod_revision, message.version, message.lease
    )


def range_of(answer: Any, revision: int = 0) -> Range:
    """What was read; inside a transaction the revision is that of the transaction."""
    return Range(revision or answer.header.revision, tuple(map(key_value, answer.kvs)), answer.count)


def _range_fields(get: Get) -> dict[str, Any]:
    fields: dict[str, Any] = {"key": get.key, "limit": get.limit, "keys_only": get.keys_only}
    if get.end:
        fields |= {"range_end": get.end, "sort_order": _ASCENDING, "sort_target": _TARGETS[get.order]}
    return fields


def committed(answer: Any, transaction: Transaction) -> Committed:
    """What came of the transaction."""
    done = transaction.then if answer.succeeded else transaction.otherwise
    revision = answer.header.revision
    if only_writes(done):
        return Committed(answer.succeeded, revision)
    return Committed(answer.succeeded, revision, tuple(_range_in(response, revision) for response in answer.responses))


def _range_in(response: Any, revision: int) -> Range:
    if response.HasField("response_range"):
        return range_of(response.response_range, revision)
    return Range(revision)


# What a message is made of, not messages: made all at once they take a third of the time.


def _compare(condition: Compare) -> dict[str, Any]:
    return {"target": _COMPARED[condition.field], "key": condition.key, condition.field: condition.expected}


def _operation(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, Put):
        return {"request_put": {"key": operation.key, "value": operation.value, "lease": operation.lease}}
    if isinstance(operation, Delete):
        return {"request_delete_range": {"key": operation.key, "range_end": operation.end}}
    return {"request_range": _range_fields(operation)}
