"""Values to etcd's messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Committed, Delete, Field, Get, KeyValue, Order, Put, Range

if TYPE_CHECKING:
    from elastic_etcd.client.values import Compare, Operation, Transaction

_ASCENDING = 1
_TARGETS = {Order.KEY: 0, Order.CREATED: 2}
_COMPARED = {Field.VERSION: 0, Field.CREATED: 1, Field.MODIFIED: 2, Field.VALUE: 3, Field.LEASE: 4}


def range_request(get: Get) -> Any:
    """The request to read, by itself or in a transaction."""
    return rpc().RangeRequest(
        key=get.key,
        range_end=get.end,
        limit=get.limit,
        sort_order=_ASCENDING if get.end else 0,
        sort_target=_TARGETS[get.order] if get.end else 0,
        keys_only=get.keys_only,
    )


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


def committed(answer: Any) -> Committed:
    """What came of a transaction."""
    revision = answer.header.revision
    ranges = tuple(_range_in(response, revision) for response in answer.responses)
    return Committed(answer.succeeded, revision, ranges)


def _range_in(response: Any, revision: int) -> Range:
    if response.WhichOneof("response") == "response_range":
        return range_of(response.response_range, revision)
    return Range(revision)


def _compare(condition: Compare) -> Any:
    expected = {condition.field.value: condition.expected}
    return rpc().Compare(target=_COMPARED[condition.field], key=condition.key, **expected)


def _operation(operation: Operation) -> Any:
    if isinstance(operation, Put):
        put = rpc().PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
        return rpc().RequestOp(request_put=put)
    if isinstance(operation, Delete):
        delete = rpc().DeleteRangeRequest(key=operation.key, range_end=operation.end)
        return rpc().RequestOp(request_delete_range=delete)
    return rpc().RequestOp(request_range=range_request(operation))
