"""Converts between plain values and etcd's messages. Requests are checked against etcd's default limits here, because
etcd's own error does not name the part that is too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_etcd.client.errors import EtcdRefused
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Committed, Delete, Field, Get, KeyValue, Put, Range, Transaction

if TYPE_CHECKING:
    from elastic_etcd.client.values import Operation

OPERATIONS = 128  # in each of the three lists of a transaction
REQUEST_BYTES = 1536 * 1024  # 1.5 MiB, for a value and for a whole request
_ENVELOPE = 512  # bytes that the server adds before it checks the size
_ASCENDING, _BY_CREATION = 1, 2
_COMPARED = {Field.VERSION: 0, Field.CREATED: 1, Field.MODIFIED: 2, Field.VALUE: 3, Field.LEASE: 4}


def range_request(get: Get) -> bytes:
    """Return the serialized request to read keys."""
    request = rpc().range.request()
    _fill_range(request, get)
    sent: bytes = request.SerializeToString()
    return sent


def txn_request(transaction: Transaction) -> bytes:
    """Return the serialized request for a transaction. Raises ValueError if it exceeds etcd's limits."""
    request = rpc().txn.request()
    for condition in transaction.conditions:
        compare = request.compare.add()
        compare.target, compare.key = _COMPARED[condition.field], condition.key
        setattr(compare, condition.field, condition.expected)
    for operation in transaction.then:
        _fill_operation(request.success.add(), operation)
    for operation in transaction.otherwise:
        _fill_operation(request.failure.add(), operation)
    sent: bytes = request.SerializeToString()
    if max(map(len, transaction)) > OPERATIONS or len(sent) > REQUEST_BYTES - _ENVELOPE:
        raise ValueError(_too_much(transaction, len(sent)))
    return sent


def key_value(message: Any) -> KeyValue:
    """Return the key-value pair in a response or an event."""
    return KeyValue(
        message.key, message.value, message.create_revision, message.mod_revision, message.version, message.lease
    )


def range_of(answer: Any, revision: int = 0) -> Range:
    """Return the key-value pairs in a response. For a read inside a transaction, `revision` is the transaction's
    revision."""
    return Range(revision or answer.header.revision, tuple(map(key_value, answer.kvs)), answer.count)


def committed(answer: Any, transaction: Transaction) -> Committed:
    """Return the outcome of a transaction. Raises EtcdRefused if the response does not contain a result for every
    operation."""
    done = transaction.then if answer.succeeded else transaction.otherwise
    revision = answer.header.revision
    if Get not in map(type, done):
        return Committed(answer.succeeded, revision)
    if len(answer.responses) != len(done):
        reason = f"expected results for {len(done)} operations, found {len(answer.responses)}"
        raise EtcdRefused(f"{reason}: the server is not etcd; correct the endpoint")
    ranges = (range_of(it.response_range, revision) for it in answer.responses)  # empty for a write
    return Committed(answer.succeeded, revision, tuple(ranges))


# Messages are filled in place, because copying a separate message into its parent would take longer than everything
# else here.


def _fill_operation(message: Any, operation: Operation) -> None:
    if isinstance(operation, Put):
        put = message.request_put
        put.key, put.value, put.lease = operation
    elif isinstance(operation, Delete):
        delete = message.request_delete_range
        delete.key, delete.range_end = operation
    else:
        _fill_range(message.request_range, operation)


def _fill_range(message: Any, get: Get) -> None:
    message.key, message.keys_only, message.count_only = get.key, get.keys_only, get.count_only
    if get.end:
        message.range_end = get.end
        message.sort_order, message.sort_target, message.limit = _ASCENDING, _BY_CREATION, get.limit


def _too_much(transaction: Transaction, size: int) -> str:
    """Describe which part of the transaction exceeds etcd's limits."""
    for name, part in zip(Transaction._fields, transaction, strict=True):
        if len(part) > OPERATIONS:
            return f"expected at most {OPERATIONS} in `{name}` of a transaction, found {len(part)}; split it"
    for operation in (*transaction.then, *transaction.otherwise):
        if isinstance(operation, Put) and len(operation.value) > REQUEST_BYTES - _ENVELOPE:
            return (
                f"expected a value of at most 1.5 MiB ({REQUEST_BYTES} bytes), found {len(operation.value)} bytes for "
                f"{operation.key!r}; store large data elsewhere, and its location here"
            )
    return f"expected at most 1.5 MiB ({REQUEST_BYTES} bytes) in a request, found {size}; split it"
