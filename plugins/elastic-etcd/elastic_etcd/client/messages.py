"""etcd's messages and calls, for any protobuf from 3.20 on.

The package etcd3 is a data file here, see the README: three of its files, generated in 2020, raise when they are
imported under protobuf 4 or later, but the text of each holds the bytes that it would hand to protobuf.

The classes live in a separate pool, so nothing of the process changes (no module, no variable, no registered file). A
call is a path and a function, which a gRPC channel takes directly, so that no stubs are needed.
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

if TYPE_CHECKING:
    from collections.abc import Callable

UNDERSTOOD = "0.12.0"
FILES = ("etcd3/etcdrpc/kv_pb2.py", "etcd3/etcdrpc/auth_pb2.py", "etcd3/etcdrpc/rpc_pb2.py")
"""Each needs those before it."""


@dataclass(frozen=True)
class Method:
    """One call that the server offers.

    Args:
        path: `/package.Service/Method`.
        request: the class of what is sent, as bytes.
        parse: an answer, from bytes.
        answers_stream: whether answers come as a stream. Requests never do: one by itself is to the server the same as
            a stream that brings no more, and to us a thread less.
    """

    path: str
    request: type[Any]
    parse: Callable[[bytes], Any]
    answers_stream: bool = False

    def filled(self, **fields: Any) -> bytes:
        """A request with these fields, as it is sent."""
        sent: bytes = self.request(**fields).SerializeToString()
        return sent

    def on(self, channel: Any) -> Any:
        """The call on a gRPC channel: `call(request, timeout=..., metadata=...)`."""
        make = channel.unary_stream if self.answers_stream else channel.unary_unary
        return make(self.path, response_deserializer=self.parse)


@dataclass(frozen=True)
class Rpc:
    """The calls that are made. Their messages are of one pool, so that they fit into each other."""

    range: Method
    txn: Method
    watch: Method
    lease_grant: Method
    lease_revoke: Method
    lease_keep_alive: Method
    authenticate: Method


_LOADING = threading.Lock()


@functools.cache
def rpc() -> Rpc:
    """All of it; loaded by the first call, which takes some tens of milliseconds. From any thread.

    Raises:
        PluginError: etcd3 is missing or not the version that is understood.
    """
    with _LOADING:  # two loads would make classes that do not fit into each other
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

    def method(service: str, name: str, answers_stream: bool = False) -> Method:
        request, answer = (
            make(pool.FindMessageTypeByName(f"etcdserverpb.{name}{it}")) for it in ("Request", "Response")
        )
        return Method(f"/etcdserverpb.{service}/{name}", request, answer.FromString, answers_stream)

    return Rpc(
        range=method("KV", "Range"),
        txn=method("KV", "Txn"),
        watch=method("Watch", "Watch", answers_stream=True),
        lease_grant=method("Lease", "LeaseGrant"),
        lease_revoke=method("Lease", "LeaseRevoke"),
        lease_keep_alive=method("Lease", "LeaseKeepAlive"),
        authenticate=method("Auth", "Authenticate"),
    )


def serialized_files() -> tuple[bytes, ...]:
    """The serialized file descriptors, each after those that it needs.

    Raises:
        PluginError: etcd3 is not installed, of a version that is not understood, or its files are not as they were.
    """
    try:
        package = metadata.distribution("etcd3")
    except metadata.PackageNotFoundError:
        raise _unusable(f"expected the package etcd3 {UNDERSTOOD}, found none installed") from None
    if package.version != UNDERSTOOD:
        raise _unusable(f"expected etcd3 {UNDERSTOOD}, found version {package.version}")
    return tuple(_serialized_at(Path(str(package.locate_file(name)))) for name in FILES)


def serialized_in(source: str) -> bytes | None:
    """The serialized file descriptor in the text of a generated module, which is text there, wrapped into a call that
    makes bytes of it; None if there is none."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg="serialized_pb", value=ast.Call(args=[ast.Constant(value=str(text))])):
                return text.encode("latin-1")
    return None


def _serialized_at(path: Path) -> bytes:
    try:
        found = serialized_in(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise _unusable(f"expected the messages of etcd in {path}, which cannot be read: {error}") from error
    if found is None:
        raise _unusable(f"expected the messages of etcd in {path}, found no descriptor there")
    return found


def _unusable(what: str) -> PluginError:
    return PluginError(Problem("etcd3", f"{what}; run `pip install --force-reinstall --no-deps etcd3=={UNDERSTOOD}`"))
