"""Foreign answers and log lines, where `fuzz_targets.py` does not reach: on the way through the client, the probe and
the store, which return a value or raise one of our errors."""

from __future__ import annotations

import contextlib
import http.server
import threading
from concurrent import futures

import pytest
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdError
from elastic_etcd.client.members import Login
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import Compare, Field, Get, Put, Transaction
from elastic_etcd.server.process import ServerLog, plain
from elastic_etcd.server.server import answers_as

ASKED = Transaction([Compare(b"a", Field.VERSION, 0)], [Put(b"a", b""), Get(b"b")], [Get(b"a")])


def answer_bytes(method, **shown):
    return type(method.parse(b""))(**shown).SerializeToString()


PAIR = {"key": b"a", "value": b"\xff", "create_revision": -1, "mod_revision": 2**63 - 1, "lease": -(2**63)}
TOKENS = [answer_bytes(rpc().authenticate, token=token) for token in ("", "a\nb", "\0", "ключ", "\U0001f600" * 10)]
ANSWERS = [
    *(b"", b"\xff", b"\x0a\xff", b"\x08\x96\x01", bytes(range(40)), TOKENS[-1]),
    answer_bytes(rpc().range, header={"cluster_id": 2**64 - 1, "revision": -1}, kvs=[PAIR, {}], count=-1),
    *(
        answer_bytes(rpc().txn, succeeded=succeeded, responses=responses)
        for succeeded in (True, False)
        for responses in ([], [{}], [{"response_put": {}}] * 2, [{"response_range": {"kvs": [PAIR]}}] * 4)
    ),
]
WATCHED = [
    *(b"", b"\xff", bytes(range(40))),
    answer_bytes(rpc().watch, header={"cluster_id": 2**64 - 1, "revision": 2**63 - 1}, created=True, canceled=True),
    answer_bytes(rpc().watch, canceled=True, cancel_reason="\x1b[31m", compact_revision=-(2**63)),
    answer_bytes(rpc().watch, compact_revision=2**63 - 1, events=[{"type": 5, "kv": PAIR}, {}]),
]


@pytest.mark.parametrize("line", ["[" * 200_000, '{"a":' * 200_000, '{"msg":' + "9" * 5000 + "}", "\ud800", "\0"])
def test_deep_or_long_log_lines_are_printable(line):
    assert plain(line).isprintable()


def test_large_log_is_read_from_its_end(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff" * 3_000_000 + b"\nthe end\n")
    log = ServerLog(tmp_path / "log")
    assert len(log.text()) <= 64 * 1024
    assert log.tail(1) == ["the end"]


class Answers:
    """A gRPC server that answers every request with the same bytes."""

    def __init__(self):
        import grpc

        self.bytes = b""
        answers = self

        class Handler(grpc.GenericRpcHandler):
            def service(self, details):
                if details.method.endswith("/Watch") or details.method.endswith("KeepAlive"):
                    return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([answers.bytes]))
                return grpc.unary_unary_rpc_method_handler(lambda request, context: answers.bytes)

        self.server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Handler()])
        self.endpoint = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


@pytest.fixture(scope="module")
def answers():
    made = Answers()
    yield made
    made.server.stop(None).wait()


@pytest.fixture(scope="module")
def its_client(answers):
    made = EtcdClient([answers.endpoint], timeout=0.2)
    yield made
    made.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.read(b"a", b"b"),
        lambda client: client.transact(ASKED),
        lambda client: client.transact(Transaction([], [Put(b"a", b"")])),
        lambda client: client.grant(5.0),
        lambda client: client.renew(1),
        lambda client: client.revoke(1),
    ],
    ids=["read", "transact", "put", "grant", "renew", "revoke"],
)
@pytest.mark.integration
def test_foreign_answers_raise_only_etcd_errors(answers, its_client, call):
    for answers.bytes in ANSWERS:
        with contextlib.suppress(EtcdError):
            call(its_client)


@pytest.mark.integration
def test_foreign_tokens_raise_only_etcd_errors(answers):
    for answers.bytes in (*TOKENS, b"\xff", bytes(range(40))):
        client = EtcdClient([answers.endpoint], login=Login("me", "s3cret"), timeout=0.1)
        try:
            client.read(b"a")
        except EtcdError as error:
            assert "s3cret" not in str(error)
        finally:
            client.close()


@pytest.mark.integration
def test_foreign_watch_messages_raise_only_etcd_errors(answers, its_client):
    for answers.bytes in WATCHED:
        watch = Reflector(its_client, b"a", b"b", revision=5)
        try:
            with contextlib.suppress(EtcdError):
                watch.wait_for(lambda: False, 0.2)
        finally:
            watch.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"1", b"[" * 100_000, b'{"members": 1}', b'{"members": [1]}', b'{"members": [{"name": [1]}]}',
     b'{"members": null}', b"9" * 5000, b"\xff", b" " * 1_000_000 + b"{}"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_probe_rejects_arbitrary_http_bodies(body):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert not answers_as("ours", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.torch
def test_add_to_a_foreign_value_counts_or_raises_value_error(etcd, client):
    from elastic_etcd import EtcdStore

    store = EtcdStore(client, "/decoders-store/")
    words = (b"\xff", b"-0", b"+5", b" 7\n", b"1_000", b"0x10", b"1e5", b"-" * 10, "٣".encode(), b"9" * 5000)
    for value in (*words, *(b"%d" % number for number in (7, 2**63, -(2**70)))):
        store.set("n", value)
        try:
            found = store.add("n", 1), store.add("n", 0)
        except ValueError as error:
            assert "cannot add to key 'n'" in str(error)
            assert store.get("n") == value
        else:
            assert found[0] == found[1]
            assert -(2**63) <= found[0] < 2**63
    store.close()
