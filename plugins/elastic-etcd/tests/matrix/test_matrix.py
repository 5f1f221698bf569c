"""The installed protobuf. tox's environments `etcd-protobuf3` to `etcd-protobuf7` run this and the tests of the client,
its leases and its watches with each supported protobuf."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from elastic_etcd.client.messages import rpc

WANTED = os.environ.get("ELASTIC_TEST_PROTOBUF")


def protobuf():
    import google.protobuf
    from google.protobuf.internal import api_implementation

    return google.protobuf.__version__, api_implementation.Type()


@pytest.mark.skipif(not WANTED, reason="no version is asked for: ELASTIC_TEST_PROTOBUF")
def test_installed_protobuf_is_the_requested_one():
    import grpc

    version, implementation = protobuf()
    print(f"protobuf {version} ({implementation}), grpcio {grpc.__version__}, Python {sys.version.split()[0]}")
    assert version.split(".")[0] == WANTED


def test_protobuf_implementation_variable_is_unset():
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" not in os.environ


THEIRS = """
def theirs():
    try:
        import etcd3
    except TypeError:  # from protobuf 4 on, without the variable that we do not want
        return "refuses"
    return etcd3.etcdrpc.RangeRequest(key=b"k").SerializeToString()
"""
OURS = """
from elastic_etcd.client.messages import rpc
def ours():
    return rpc().range.filled(key=b"k")
"""


@pytest.mark.integration
@pytest.mark.parametrize("order", ["ours(), theirs(), ours()", "theirs(), ours(), theirs()"])
def test_our_messages_do_not_affect_imports_of_etcd3(order):
    def run(program):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = run(f"{THEIRS}\nprint(theirs())").strip()
    said = run(f"{THEIRS}{OURS}\nprint([str(found) for found in ({order})])").strip()
    asked = order.replace("ours()", repr(str(rpc().range.filled(key=b"k"))))
    assert said == "[" + asked.replace("theirs()", repr(alone)) + "]"
    assert alone == ("refuses" if int(protobuf()[0].split(".")[0]) >= 4 else str(b"\n\x01k"))
