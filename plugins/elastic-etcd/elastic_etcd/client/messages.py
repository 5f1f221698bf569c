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
from dataclasses import dataclass, fields
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
    """One call that the server offers; a request is bytes.

    Args:
        path: `/package.Service/Method`.
        parse: an answer, from bytes.
        answers_stream: whether answers come as a stream. Requests never do: one by itself is to the server the same as
            a stream that brings no more, and to us a thread less.
    """

    path: str
    parse: Callable[[bytes], Any]
    answers_stream: bool = False

    def on(self, channel: Any) -> Any:
        """The call on a gRPC channel: `call(request, timeout=..., metadata=...)`."""
        make = channel.unary_stream if self.answers_stream else channel.unary_unary
        return make(self.path, response_deserializer=self.parse)


CALLS = {
    "range": "/etcdserverpb.KV/Range",
    "txn": "/etcdserverpb.KV/Txn",
    "watch": "/etcdserverpb.Watch/Watch",
    "lease_grant": "/etcdserverpb.Lease/LeaseGrant",
    "lease_revoke": "/etcdserverpb.Lease/LeaseRevoke",
    "lease_keep_alive": "/etcdserverpb.Lease/LeaseKeepAlive",
    "authenticate": "/etcdserverpb.Auth/Authenticate",
}
"""The path of each call that is made."""


@dataclass(frozen=True)
class Rpc:
    """The calls that are made, and the classes of what is sent. All of one pool, so that they fit into each other."""

    range: Method
    txn: Method
    watch: Method
    lease_grant: Method
    lease_revoke: Method
    lease_keep_alive: Method
    authenticate: Method

    RangeRequest: type[Any]
    TxnRequest: type[Any]
    WatchRequest: type[Any]
    WatchCreateRequest: type[Any]
    LeaseGrantRequest: type[Any]
    LeaseRevokeRequest: type[Any]
    LeaseKeepAliveRequest: type[Any]
    AuthenticateRequest: type[Any]


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

    def message(name: str) -> type[Any]:
        made: type[Any] = make(pool.FindMessageTypeByName(f"etcdserverpb.{name}"))
        return made

    parts: dict[str, Any] = {item.name: message(item.name) for item in fields(Rpc) if item.name not in CALLS}
    for name, path in CALLS.items():
        answer = message(f"{path.rpartition('/')[2]}Response")
        parts[name] = Method(path, answer.FromString, answers_stream=name == "watch")
    return Rpc(**parts)


def serialized_files() -> tuple[bytes, ...]:
    """The serialized file descriptors, each after those that it needs.

    Raises:
        PluginError: etcd3 is not installed, of a version that is not understood, or its files are not as they were.
    """
    try:
        package = metadata.distribution("etcd3")
    except metadata.PackageNotFoundError:
        raise _unusable(f"expected the package etcd3 {UNDERSTOOD}, found none installed") from None
    understood(package.version)
    return tuple(_serialized_at(Path(str(package.locate_file(name)))) for name in FILES)


def understood(version: str) -> str:
    """The version, if its files can be read. Raises PluginError."""
    if version != UNDERSTOOD:
        raise _unusable(f"expected etcd3 {UNDERSTOOD}, found version {version}")
    return version


def serialized_in(source: str) -> bytes | None:
    """The serialized file descriptor in the text of a generated module; None if there is none."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    values = (word.value for call in calls for word in call.keywords if word.arg == "serialized_pb")
    return next((found for found in map(_literal, values) if found is not None), None)


def _serialized_at(path: Path) -> bytes:
    try:
        found = serialized_in(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise _unusable(f"expected the messages of etcd in {path}, which cannot be read: {error}") from error
    if found is None:
        raise _unusable(f"expected the messages of etcd in {path}, found no descriptor there")
    return found


def _literal(value: ast.expr) -> bytes | None:
    """The bytes of a literal, which older generators wrap into a call that makes bytes of text."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, ast.Constant):
        return None
    if isinstance(value.value, str):
        return value.value.encode("latin-1")
    return value.value if isinstance(value.value, bytes) else None


def _unusable(what: str) -> PluginError:
    return PluginError(Problem("etcd3", f"{what}; run `pip install --force-reinstall --no-deps etcd3=={UNDERSTOOD}`"))
