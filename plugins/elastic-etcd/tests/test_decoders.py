"""All decoders of this package on arbitrary input: they return a value or raise one of our errors, nothing else. The
examples are the same each time."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import threading
from concurrent import futures

import pytest
from elastic_etcd import EtcdRendezvousBackend
from elastic_etcd.backend.keys import Keys
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdError
from elastic_etcd.client.members import Login
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import Compare, Field, Get, Put, Transaction
from elastic_etcd.server.process import ServerLog, plain
from elastic_etcd.server.server import answers_as
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_core.interfaces.backend import ForeignStateError

KEYS = Keys("elastic", "job")
NUMBERS = itertools.count()  # examples do not share keys
LONG = 60.0
many = settings(derandomize=True, max_examples=300, deadline=None)
some = settings(
    derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

numbers = st.integers(-(2**63), 2**63 - 1)
pairs = st.fixed_dictionaries(
    {},
    optional={
        "key": st.binary(max_size=20),
        "value": st.binary(max_size=20),
        **dict.fromkeys(("create_revision", "mod_revision", "version", "lease"), numbers),
    },
)
headers = st.fixed_dictionaries({}, optional={"cluster_id": st.integers(0, 2**64 - 1), "revision": numbers})
ranges = st.fixed_dictionaries({}, optional={"header": headers, "kvs": st.lists(pairs, max_size=3), "count": numbers})
parts = st.one_of(
    st.just({}), st.fixed_dictionaries({"response_range": ranges}), st.just({"response_put": {}})
)  # fmt: skip
transactions = st.fixed_dictionaries(
    {}, optional={"header": headers, "succeeded": st.booleans(), "responses": st.lists(parts, max_size=4)}
)
events = st.fixed_dictionaries({}, optional={"type": st.integers(0, 5), "kv": pairs})
watched = st.fixed_dictionaries(
    {},
    optional={
        "header": headers,
        "created": st.booleans(),
        "canceled": st.booleans(),
        "compact_revision": numbers,
        "cancel_reason": st.text(max_size=30),
        "events": st.lists(events, max_size=4),
    },
)
ASKED = Transaction([Compare(b"a", Field.VERSION, 0)], [Put(b"a", b""), Get(b"b")], [Get(b"a")])


def answer_bytes(method, shown):
    return type(method.parse(b""))(**shown).SerializeToString()


@many
@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=40))
def test_node_names_survive_encoding_in_keys(key):
    assert KEYS.key_of(KEYS.node(key)) == key


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


tokens = st.text(max_size=10).map(lambda token: answer_bytes(rpc().authenticate, {"token": token}))
raw = st.one_of(
    st.binary(max_size=40),
    tokens,
    ranges.map(lambda shown: answer_bytes(rpc().range, shown)),
    transactions.map(lambda shown: answer_bytes(rpc().txn, shown)),
)


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
@some
@given(raw)
def test_arbitrary_answers_raise_only_etcd_errors(answers, its_client, call, given):
    answers.bytes = given
    with contextlib.suppress(EtcdError):
        call(its_client)


@pytest.mark.integration
@settings(some, max_examples=25)
@given(tokens | st.binary(max_size=40))
def test_arbitrary_tokens_raise_only_etcd_errors(answers, given):
    answers.bytes = given
    client = EtcdClient([answers.endpoint], login=Login("me", "s3cret"), timeout=0.1)
    try:
        client.read(b"a")
    except EtcdError as error:
        assert "s3cret" not in str(error)
    finally:
        client.close()


@pytest.mark.integration
@settings(some, max_examples=25)
@given(watched.map(lambda shown: answer_bytes(rpc().watch, shown)) | st.binary(max_size=40))
def test_arbitrary_watch_messages_raise_only_etcd_errors(answers, its_client, given):
    answers.bytes = given
    watch = Reflector(its_client, b"a", b"b", revision=5)
    try:
        with contextlib.suppress(EtcdError):
            watch.wait_for(lambda: False, 0.05)
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


@some
@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30)), max_size=3), st.binary(max_size=40))
def test_backend_copes_with_arbitrary_keys_and_state(etcd, client, nodes, state):
    prefix = f"decoders/{next(NUMBERS)}"
    keys = Keys(prefix, "job")
    names = {keys.nodes + name: value for name, value in nodes}
    puts = [Put(name, value) for name, value in names.items()]
    client.transact(Transaction([], [*puts, Put(keys.state, state), Put(keys.lead, state)]))
    backend = EtcdRendezvousBackend(EtcdClient([etcd.endpoint], timeout=LONG), "job", prefix, lease_ttl=LONG)
    found = backend.roster()
    assert all(keys.node(item.key) in names or item.entry for item in found)
    try:
        shown, token = backend.get_state()
        assert shown in state
    except ForeignStateError as error:
        token = error.token
    assert backend.set_state(b"ours", token)[2]
    assert backend.beat("a/1", leading=False, look=True) is not None if backend.announce("a/1", b"") else True
    backend.withdraw("a/1")
    backend.close()


@pytest.mark.torch
@some
@given(
    st.one_of(
        st.binary(max_size=40),
        st.integers().map(lambda number: b"%d" % number),
        st.text(st.characters(categories=["Nd"]), min_size=1, max_size=20).map(str.encode),
        st.sampled_from([b"9" * 5000, b"-0", b"+5", b" 7\n", b"1_000", b"0x10", b"1e5", b"-" * 10]),
    )
)
def test_add_to_arbitrary_value_counts_or_raises_value_error(etcd, client, value):
    from elastic_etcd.store import EtcdStore

    store = EtcdStore(client, "/decoders-store/")
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
