"""etcd's messages and calls, for protobuf 3.20 and later, and their conversion from and to plain values.

The package etcd3 is used as a data file (see the README). Its modules cannot be imported with protobuf 4 or later, but
their source text contains the serialized descriptors. The message classes are kept in a private pool, so that nothing
else in the process is affected. A gRPC channel takes a path and a parser directly, so no stubs are needed.

Requests are checked against etcd's default limits here, because etcd's own error does not name the part that is too
large.
"""

from __future__ import annotations

import ast
import functools
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import PluginError, Problem
from elastic_etcd.client.errors import EtcdRefused
from elastic_etcd.client.values import Committed, Delete, Field, Get, KeyValue, Put, Range, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_etcd.client.values import Operation

UNDERSTOOD = "0.12.0"
FILES = ("etcd3/etcdrpc/kv_pb2.py", "etcd3/etcdrpc/auth_pb2.py", "etcd3/etcdrpc/rpc_pb2.py")  # in import order
OPERATIONS = 128  # in each of the three lists of a transaction
REQUEST_BYTES = 1536 * 1024  # 1.5 MiB, for a value and for a whole request
_ENVELOPE = 512  # bytes that the server adds before it checks the size
_ASCENDING, _BY_CREATION = 1, 2
_COMPARED = {Field.VERSION: 0, Field.CREATED: 1, Field.MODIFIED: 2, Field.VALUE: 3, Field.LEASE: 4}


@dataclass(frozen=True)
class Method:
    """A call that the server offers. `path` is `/package.Service/Method`. The request is always a single message, which
    saves a thread for sending. The responses may arrive as a stream."""

    path: str
    request: type[Any]
    parse: Callable[[bytes], Any]
    answers_stream: bool = False

    def filled(self, **fields: Any) -> bytes:
        """Return a serialized request with these fields."""
        sent: bytes = self.request(**fields).SerializeToString()
        return sent

    def on(self, channel: Any) -> Any:
        """Return the call on a gRPC channel as `call(request, timeout=..., metadata=...)`."""
        make = channel.unary_stream if self.answers_stream else channel.unary_unary
        return make(self.path, response_deserializer=self.parse)


class Rpc:
    """The calls that this client makes. Their messages share one pool so that they are compatible."""

    def __init__(self, made: Callable[[str, str], Method]) -> None:
        self.range = made("KV", "Range")
        self.txn = made("KV", "Txn")
        self.watch = made("Watch", "Watch")
        self.lease_grant = made("Lease", "LeaseGrant")
        self.lease_revoke = made("Lease", "LeaseRevoke")
        self.lease_keep_alive = made("Lease", "LeaseKeepAlive")
        self.authenticate = made("Auth", "Authenticate")


_LOADING = threading.Lock()


@functools.cache
def rpc() -> Rpc:
    """Return all calls. Thread-safe. The first use takes a few tens of milliseconds. Raises PluginError if etcd3 is
    missing or has the wrong version."""
    with _LOADING:  # message classes from two separate loads are incompatible
        return _load()


@functools.cache
def _load() -> Rpc:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for serialized in serialized_files():
        pool.AddSerializedFile(serialized)
    if hasattr(message_factory, "GetMessageClass"):
        make = message_factory.GetMessageClass
    else:  # before protobuf 4.22
        make = message_factory.MessageFactory(pool).GetPrototype

    def made(service: str, name: str) -> Method:
        request, answer = (
            make(pool.FindMessageTypeByName(f"etcdserverpb.{name}{it}")) for it in ("Request", "Response")
        )
        return Method(f"/etcdserverpb.{service}/{name}", request, answer.FromString, answers_stream=name == "Watch")

    return Rpc(made)


def serialized_files() -> tuple[bytes, ...]:
    """Return the serialized file descriptors in the order of their imports. Raises PluginError."""
    try:
        package = metadata.distribution("etcd3")
    except metadata.PackageNotFoundError:
        raise _unusable(f"the package etcd3 {UNDERSTOOD} is not installed") from None
    if package.version != UNDERSTOOD:
        raise _unusable(f"expected etcd3 {UNDERSTOOD}, found version {package.version}")
    return tuple(_serialized_at(Path(str(package.locate_file(name)))) for name in FILES)


def serialized_in(source: str) -> bytes | None:
    """Return the serialized file descriptor in a generated module's source text, or None if the text contains none."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg="serialized_pb", value=ast.Call(args=[ast.Constant(value=str(text))])):
                return text.encode("latin-1")
    return None


def _serialized_at(path: Path) -> bytes:
    try:
        if found := serialized_in(path.read_text(encoding="utf-8")):
            return found
        raise ValueError("it contains no descriptor")
    except (OSError, SyntaxError, ValueError) as error:
        raise _unusable(f"etcd's messages in {path} cannot be read: {error}") from error


def _unusable(what: str) -> PluginError:
    return PluginError(Problem("etcd3", f"{what}; run `pip install --force-reinstall --no-deps etcd3=={UNDERSTOOD}`"))


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
