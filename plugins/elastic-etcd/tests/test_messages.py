"""etcd's messages, built from files of the package etcd3 without changing any global state."""

from __future__ import annotations

import subprocess
import sys

import pytest
from elastic_etcd.client.messages import UNDERSTOOD, serialized_in

from elastic_core.errors import ExitCode

LIMIT_S = 60


def run(program, path="", *options):
    """The output of a program in a separate Python, with `path` first on its module path."""
    begin = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, *options, "-c", begin + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(folder, version=UNDERSTOOD, files=None):
    """Install a package with the name etcd3 in a folder."""
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


@pytest.mark.integration
def test_building_messages_changes_no_global_state():
    output = run(
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
    assert output.splitlines() == ["True True True", "[]"]


@pytest.mark.integration
def test_import_loads_neither_protobuf_nor_grpc():
    output = run(
        "import elastic_etcd.client.messages, sys; "
        "print([m for m in sys.modules if m.partition('.')[0] in ('google', 'grpc', 'etcd3')])"
    )
    assert output.strip() == "[]"


@pytest.mark.integration
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_another_librarys_rpc_proto_does_not_conflict(first):
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
    output = run((ours + theirs if first == "ours" else theirs + ours) + check)
    assert output.strip() == r"['other'] b'\n\x01k'"


@pytest.mark.parametrize(
    "source", ["", "raise SystemExit(1)", "make(serialized_pb=None)", "make(serialized_pb=f(a, b))"]
)
def test_source_without_descriptor_is_not_executed(source):
    assert serialized_in(source) is None


@pytest.mark.integration
def test_other_etcd3_version_is_refused_with_advice(tmp_path):
    message, code = run(REFUSAL, installed(tmp_path, "1.0.0")).splitlines()
    advice = "pip install --force-reinstall --no-deps etcd3==0.12.0"
    assert message == f"etcd3: expected etcd3 0.12.0, found version 1.0.0; run `{advice}`"
    assert code == repr(ExitCode.BAD_CONFIGURATION)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "found"),
    [(None, "cannot be read"), ("x = (", "cannot be read"), ("x = 1\0", "cannot be read"), ("x = 1", "no descriptor")],
)
def test_missing_or_damaged_files_are_named(tmp_path, text, found):
    output = run(REFUSAL, installed(tmp_path, files={} if text is None else {"etcd3/etcdrpc/kv_pb2.py": text}))
    assert "kv_pb2.py" in output and found in output
    assert "pip install" in output


@pytest.mark.integration
def test_missing_package_is_named():
    loaded = "import elastic_etcd.client.messages, google.protobuf.descriptor_pb2, google.protobuf.descriptor_pool"
    output = run(f"{loaded}, sys; sys.path[:] = []" + REFUSAL)
    assert "is not installed; run `pip install" in output
