"""etcd's messages, built from what the package etcd3 ships; and that building them changes nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from elastic_etcd.client.messages import CALLS, UNDERSTOOD, rpc, serialized_files, serialized_in

from elastic_core.errors import ExitCode

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
    print(repr(error.exit_code))
"""


def test_messages_fit_into_each_other():
    r = rpc()
    sent = r.txn.request()
    compare = sent.compare.add(key=b"k", mod_revision=7)
    compare.result, compare.target = compare.EQUAL, compare.MOD
    put = sent.success.add().request_put
    put.key, put.value, put.lease = b"k", b"v", 3
    sent.failure.add().request_range.CopyFrom(r.range.request(key=b"k", range_end=b"l"))
    found = r.txn.request.FromString(sent.SerializeToString())
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
    assert {item.name: getattr(r, item.name).path for item in dataclasses.fields(r)} == CALLS


def test_requests_and_answers_are_those_of_the_call():
    for name, path in CALLS.items():
        method, call = getattr(rpc(), name), path.rpartition("/")[2]
        assert method.request.DESCRIPTOR.name == f"{call}Request"
        assert method.parse(b"").DESCRIPTOR.name == f"{call}Response"


def test_calls_know_which_of_them_stream():
    r = rpc()
    assert [name for name in CALLS if getattr(r, name).answers_stream] == ["watch"]


def test_a_call_goes_to_a_server_and_comes_back(etcd, prefix):
    import grpc

    r = rpc()
    write = r.txn.request()
    put = write.success.add().request_put
    put.key, put.value = prefix, b"v"
    with grpc.insecure_channel(etcd.endpoint) as channel:
        r.txn.on(channel)(write.SerializeToString(), timeout=LIMIT_S)
        answer = r.range.on(channel)(r.range.filled(key=prefix), timeout=LIMIT_S)
    assert [pair.value for pair in answer.kvs] == [b"v"]


def test_a_call_of_streams_takes_one_request(etcd, prefix):
    import grpc

    r = rpc()
    with grpc.insecure_channel(etcd.endpoint) as channel:
        lease = r.lease_grant.on(channel)(r.lease_grant.filled(TTL=60), timeout=LIMIT_S).ID
        renew = r.lease_keep_alive.on(channel)
        answers = [renew(r.lease_keep_alive.filled(ID=one), timeout=LIMIT_S) for one in (lease, 1)]
        watched = r.watch.filled(create_request={"key": prefix})
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
r.txn.request().compare.add(key=b"k").SerializeToString()
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
assert rpc().range.request(key=b"k").key == b"k"
"""
    check = """
names = [f.name for f in descriptor_pool.Default().FindMessageTypeByName("etcdserverpb.RangeRequest").fields]
print(names, rpc().range.filled(key=b"k"))
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


def test_a_descriptor_is_found_as_text():
    assert serialized_in(r"D = make(name='x', serialized_pb=_b('\n\xff'))") == b"\n\xff"


@pytest.mark.parametrize(
    "source", ["", "raise SystemExit(1)", "make(serialized_pb=None)", "make(serialized_pb=f(a, b))"]
)
def test_what_has_no_descriptor_has_none_and_is_not_executed(source):
    assert serialized_in(source) is None


@pytest.mark.integration
def test_another_version_is_refused_with_what_to_do(tmp_path):
    told, code = run(REFUSAL, installed(tmp_path, "1.0.0")).splitlines()
    advice = "pip install --force-reinstall --no-deps etcd3==0.12.0"
    assert told == f"etcd3: expected etcd3 0.12.0, found version 1.0.0; run `{advice}`"
    assert code == repr(ExitCode.BAD_CONFIGURATION)


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
