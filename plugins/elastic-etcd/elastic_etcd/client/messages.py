"""etcd's messages and calls, for protobuf 3.20 and later.

The package etcd3 is used as a data file (see the README). Its modules cannot be imported with protobuf 4 or later, but
their source text contains the serialized descriptors. The message classes are kept in a private pool, so that nothing
else in the process is affected. A gRPC channel takes a path and a parser directly, so no stubs are needed.
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
FILES = ("etcd3/etcdrpc/kv_pb2.py", "etcd3/etcdrpc/auth_pb2.py", "etcd3/etcdrpc/rpc_pb2.py")  # in import order


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
