"""etcd's messages and calls, for any protobuf from 3.20 on.

The classes live in a pool of their own: another library's `rpc.proto` in protobuf's default pool is not in the way, and
nothing of the process changes (no module, no variable, no registered file). The stubs of etcd3 are not needed: a call
is a path and two functions, and a gRPC channel takes these directly; so none of etcd3 is imported.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from elastic_etcd.client.descriptors import serialized_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Method:
    """One call that the server offers.

    Args:
        path: `/package.Service/Method`.
        serialize, parse: a request to bytes; bytes to an answer.
        sends_stream, answers_stream: whether requests, answers come as a stream.
    """

    path: str
    serialize: Callable[[Any], bytes]
    parse: Callable[[bytes], Any]
    sends_stream: bool = False
    answers_stream: bool = False

    def on(self, channel: Any) -> Any:
        """The call on a gRPC channel, as a generated stub has it: `call(request, timeout=..., metadata=...)`."""
        kind = f"{_arity(self.sends_stream)}_{_arity(self.answers_stream)}"
        return getattr(channel, kind)(self.path, request_serializer=self.serialize, response_deserializer=self.parse)


CALLS = {
    "range": "/etcdserverpb.KV/Range",
    "put": "/etcdserverpb.KV/Put",
    "delete_range": "/etcdserverpb.KV/DeleteRange",
    "txn": "/etcdserverpb.KV/Txn",
    "compact": "/etcdserverpb.KV/Compact",
    "watch": "/etcdserverpb.Watch/Watch",
    "lease_grant": "/etcdserverpb.Lease/LeaseGrant",
    "lease_revoke": "/etcdserverpb.Lease/LeaseRevoke",
    "lease_keep_alive": "/etcdserverpb.Lease/LeaseKeepAlive",
    "lease_time_to_live": "/etcdserverpb.Lease/LeaseTimeToLive",
    "lease_leases": "/etcdserverpb.Lease/LeaseLeases",
    "authenticate": "/etcdserverpb.Auth/Authenticate",
    "status": "/etcdserverpb.Maintenance/Status",
    "alarm": "/etcdserverpb.Maintenance/Alarm",
    "member_list": "/etcdserverpb.Cluster/MemberList",
}
"""The path of each call that is made."""


@dataclass(frozen=True)
class Rpc:
    """Message classes under their own names, and calls. All of one pool, so that they fit into each other."""

    range: Method
    put: Method
    delete_range: Method
    txn: Method
    compact: Method
    watch: Method
    lease_grant: Method
    lease_revoke: Method
    lease_keep_alive: Method
    lease_time_to_live: Method
    lease_leases: Method
    authenticate: Method
    status: Method
    alarm: Method
    member_list: Method

    RangeRequest: type[Any]
    RangeResponse: type[Any]
    PutRequest: type[Any]
    PutResponse: type[Any]
    DeleteRangeRequest: type[Any]
    DeleteRangeResponse: type[Any]
    TxnRequest: type[Any]
    TxnResponse: type[Any]
    Compare: type[Any]
    RequestOp: type[Any]
    ResponseOp: type[Any]
    ResponseHeader: type[Any]
    CompactionRequest: type[Any]
    WatchRequest: type[Any]
    WatchCreateRequest: type[Any]
    WatchCancelRequest: type[Any]
    WatchResponse: type[Any]
    LeaseGrantRequest: type[Any]
    LeaseGrantResponse: type[Any]
    LeaseRevokeRequest: type[Any]
    LeaseRevokeResponse: type[Any]
    LeaseKeepAliveRequest: type[Any]
    LeaseKeepAliveResponse: type[Any]
    LeaseTimeToLiveRequest: type[Any]
    LeaseTimeToLiveResponse: type[Any]
    LeaseLeasesRequest: type[Any]
    LeaseLeasesResponse: type[Any]
    AuthenticateRequest: type[Any]
    AuthenticateResponse: type[Any]
    StatusRequest: type[Any]
    StatusResponse: type[Any]
    AlarmRequest: type[Any]
    AlarmResponse: type[Any]
    MemberListRequest: type[Any]
    MemberListResponse: type[Any]
    KeyValue: type[Any]
    Event: type[Any]


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
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    files = []
    for serialized in serialized_files():
        pool.AddSerializedFile(serialized)
        files.append(descriptor_pb2.FileDescriptorProto.FromString(serialized))
    classes = _classes(pool, [f"{file.package}.{message.name}" for file in files for message in file.message_type])
    return _assembled(classes, dict(_methods(files, classes)))


def _classes(pool: Any, names: Sequence[str]) -> dict[str, type[Any]]:
    """Message classes by full name."""
    from google.protobuf import message_factory

    if hasattr(message_factory, "GetMessageClass"):
        make = message_factory.GetMessageClass
    else:  # before protobuf 4.22
        make = message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(name)) for name in names}


def _methods(files: Sequence[Any], classes: Mapping[str, type[Any]]) -> Iterator[tuple[str, Method]]:
    """The calls by path."""
    for file in files:
        for service in file.service:
            for method in service.method:
                path = f"/{file.package}.{service.name}/{method.name}"
                yield path, _method(path, method, classes)


def _method(path: str, method: Any, classes: Mapping[str, type[Any]]) -> Method:
    request, answer = (classes[name.lstrip(".")] for name in (method.input_type, method.output_type))
    return Method(path, request.SerializeToString, answer.FromString, method.client_streaming, method.server_streaming)


def _assembled(classes: Mapping[str, type[Any]], methods: Mapping[str, Method]) -> Rpc:
    short = {name.rpartition(".")[2]: made for name, made in classes.items()}
    parts: dict[str, Any] = {item.name: short.get(item.name) for item in fields(Rpc)}
    return Rpc(**{**parts, **{name: methods[path] for name, path in CALLS.items()}})


def _arity(streams: bool) -> str:
    return "stream" if streams else "unary"
