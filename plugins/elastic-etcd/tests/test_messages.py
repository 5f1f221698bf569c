"""etcd's messages, built from what the package etcd3 ships; and that building them changes nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from elastic_etcd.client.messages import CALLS, UNDERSTOOD, Method, rpc, serialized_files, serialized_in, understood

from elastic_core.errors import ExitCode, PluginError

LIMIT_S = 60


def run(program, path="", *options):
    """What a Python of its own says; with `path` in front of everything that is installed."""
    begin = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, *options, "-c", begin + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(folder, version=UNDERSTOOD, files=None):
    """A folder in which something that calls itself etcd3 is installed."""
    info = folder / f"etcd3-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: etcd3\nVersion: {version}\n")
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


REFUSAL = """
from elastic_core.errors import PluginError
from elastic_etcd.client.messages import rpc
try:
    rpc()
except PluginError as error:
    print(error)
"""


def test_messages_fit_into_each_other():
    r = rpc()
    sent = r.TxnRequest()
    compare = sent.compare.add(key=b"k", mod_revision=7)
    compare.result, compare.target = compare.EQUAL, compare.MOD
    put = sent.success.add().request_put
    put.key, put.value, put.lease = b"k", b"v", 3
    sent.failure.add().request_range.CopyFrom(r.RangeRequest(key=b"k", range_end=b"l"))
    found = r.TxnRequest.FromString(sent.SerializeToString())
    assert found == sent
    assert found.compare[0].mod_revision == 7
    assert found.success[0].request_put.lease == 3


def test_the_messages_of_all_packages_are_there():
    r = rpc()
    sent = r.watch.parse(b"")
    event = sent.events.add()
    event.type, event.kv.key, event.kv.mod_revision = event.DELETE, b"k", 2
    assert r.watch.parse(sent.SerializeToString()).events[0].kv.key == b"k"


def test_every_call_that_is_declared_is_there_and_no_other():
    r = rpc()
    methods = {item.name: getattr(r, item.name) for item in dataclasses.fields(r)}
    calls = {name: method.path for name, method in methods.items() if isinstance(method, Method)}
    assert calls == CALLS


def test_every_message_that_is_declared_is_there():
    r = rpc()
    messages = [item.name for item in dataclasses.fields(r) if item.name not in CALLS]
    assert [getattr(r, name).DESCRIPTOR.name for name in messages] == messages


def test_calls_know_which_of_them_stream():
    r = rpc()
    assert [name for name in CALLS if getattr(r, name).answers_stream] == ["watch"]


def test_a_call_goes_to_a_server_and_comes_back(etcd, prefix):
    import grpc

    r = rpc()
    write = r.TxnRequest()
    put = write.success.add().request_put
    put.key, put.value = prefix, b"v"
    with grpc.insecure_channel(etcd.endpoint) as channel:
        r.txn.on(channel)(write.SerializeToString(), timeout=LIMIT_S)
        answer = r.range.on(channel)(r.RangeRequest(key=prefix).SerializeToString(), timeout=LIMIT_S)
    assert [pair.value for pair in answer.kvs] == [b"v"]


def test_a_call_of_streams_takes_one_request(etcd, prefix):
    import grpc

    r = rpc()
    with grpc.insecure_channel(etcd.endpoint) as channel:
        lease = r.lease_grant.on(channel)(r.LeaseGrantRequest(TTL=60).SerializeToString(), timeout=LIMIT_S).ID
        renew = r.lease_keep_alive.on(channel)
        answers = [renew(r.LeaseKeepAliveRequest(ID=one).SerializeToString(), timeout=LIMIT_S) for one in (lease, 1)]
        watched = r.WatchRequest(create_request=r.WatchCreateRequest(key=prefix)).SerializeToString()
        stream = r.watch.on(channel)(watched, timeout=LIMIT_S)
        assert next(stream).created
        stream.cancel()
    assert [answer.TTL for answer in answers] == [60, 0]


@pytest.mark.integration
def test_nothing_of_the_process_changes():
    said = run(
        """
import os, sys
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, symbol_database
from importlib import metadata
from elastic_etcd.client.messages import rpc
environment, hooks, path = dict(os.environ), list(sys.meta_path), list(sys.path)
r = rpc()
r.TxnRequest().compare.add(key=b"k").SerializeToString()
print(environment == dict(os.environ), hooks == sys.meta_path, path == sys.path)
print([name for name in sys.modules if name.partition(".")[0] in ("etcd3", "grpc", "rpc_pb2", "kv_pb2", "auth_pb2")])
for name in ("rpc.proto", "kv.proto", "auth.proto"):
    try:
        descriptor_pool.Default().FindFileByName(name)
        print("registered:", name)
    except KeyError:
        pass
"""
    )
    assert said.splitlines() == ["True True True", "[]"]


@pytest.mark.integration
def test_importing_loads_neither_protobuf_nor_grpc():
    said = run(
        "import elastic_etcd.client.messages, sys; "
        "print([m for m in sys.modules if m.partition('.')[0] in ('google', 'grpc', 'etcd3')])"
    )
    assert said.strip() == "[]"


@pytest.mark.integration
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_another_librarys_rpc_proto_is_not_in_the_way(first):
    theirs = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb", syntax="proto3")
file.message_type.add(name="RangeRequest").field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
    ours = """
from elastic_etcd.client.messages import rpc
assert rpc().RangeRequest(key=b"k").key == b"k"
"""
    check = """
names = [f.name for f in descriptor_pool.Default().FindMessageTypeByName("etcdserverpb.RangeRequest").fields]
print(names, rpc().RangeRequest(key=b"k").SerializeToString())
"""
    said = run((ours + theirs if first == "ours" else theirs + ours) + check)
    assert said.strip() == r"['other'] b'\n\x01k'"


@pytest.mark.integration
def test_all_threads_get_the_same():
    said = run(
        """
import threading
from elastic_etcd.client.messages import rpc
together, found = threading.Barrier(8), []
def load():
    together.wait(60)
    found.append(rpc())
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
print(len(found), len({id(one) for one in found}))
"""
    )
    assert said.split() == ["8", "1"]


def test_the_files_describe_what_they_are_named_for():
    from google.protobuf import descriptor_pb2

    names = [descriptor_pb2.FileDescriptorProto.FromString(file).name for file in serialized_files()]
    assert names == ["kv.proto", "auth.proto", "rpc.proto"]


@pytest.mark.parametrize(
    "source",
    [
        r"D = make(name='x', serialized_pb=_b('\n\xff'))",
        r"D = make(name='x', serialized_pb=b'\n\xff')",
    ],
)
def test_a_descriptor_is_found_as_text_and_as_bytes(source):
    assert serialized_in(source) == b"\n\xff"


@pytest.mark.parametrize(
    "source", ["", "raise SystemExit(1)", "make(serialized_pb=None)", "make(serialized_pb=f(a, b))"]
)
def test_what_has_no_descriptor_has_none_and_is_not_executed(source):
    assert serialized_in(source) is None


def test_the_version_that_is_understood_is_fine():
    assert understood(UNDERSTOOD) == UNDERSTOOD


def test_another_version_is_refused_with_what_to_do():
    with pytest.raises(PluginError) as caught:
        understood("1.0.0")
    assert str(caught.value) == (
        "etcd3: expected etcd3 0.12.0, found version 1.0.0; run `pip install --force-reinstall --no-deps etcd3==0.12.0`"
    )
    assert caught.value.exit_code is ExitCode.BAD_CONFIGURATION


@pytest.mark.integration
def test_another_version_that_is_installed_is_refused(tmp_path):
    assert "found version 0.13.1" in run(REFUSAL, installed(tmp_path, "0.13.1"))


@pytest.mark.integration
def test_files_that_are_missing_are_named(tmp_path):
    said = run(REFUSAL, installed(tmp_path))
    assert "kv_pb2.py, which cannot be read" in said
    assert "pip install" in said


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "found"),
    [("x = (", "which cannot be read"), ("x = 1\0", "which cannot be read"), ("x = 1", "no descriptor")],
)
def test_files_that_are_damaged_are_named(tmp_path, text, found):
    assert found in run(REFUSAL, installed(tmp_path, files={"etcd3/etcdrpc/kv_pb2.py": text}))


@pytest.mark.integration
def test_a_package_that_is_not_installed_is_named():
    loaded = "import elastic_etcd.client.messages, google.protobuf.descriptor_pb2, google.protobuf.descriptor_pool"
    said = run(f"{loaded}, sys; sys.path[:] = []" + REFUSAL)
    assert "found none installed; run `pip install" in said
