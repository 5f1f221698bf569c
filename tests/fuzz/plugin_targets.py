"""The targets of the installed plugins. See `targets.py`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.util import find_spec

from elastic_testing import FakeAgentView, FakeClock
from fuzz.targets import DEEP, LONGEST_WORD, target, text_of, written

from elastic_core.errors import ConfigurationError, ElasticError, RendezvousStateError
from elastic_core.text import printable

if find_spec("elastic_file_timer"):
    from elastic_file_timer.request import FileTimerRequest, Lines
    from elastic_file_timer.timer_table import TimerTable

    _TIMER = FileTimerRequest(os.getpid(), "scope", 1_700_000_010.0, 9, "job", None, 5.0).to_json().encode()

    @target((), _TIMER + b"\n", _TIMER[:30] + _TIMER + b"\n", _TIMER.replace(b"1700000010.0", b"-1") + b"\n", DEEP)
    def timer_pipe(data):
        """Data from any process in the timers' pipe, in two pieces."""
        clock = FakeClock()
        table, lines = TimerTable("job", clock, most=8), Lines()
        for piece in (data[: len(data) // 2], data[len(data) // 2 :], b"\n"):
            table.register(table.read(lines.feed(piece)))
        table.next_deadline()
        clock.advance(1e6)
        for timer in table.expired(clock.now()):
            assert printable(timer.scope) == timer.scope
        table.forget({os.getpid()})


if find_spec("elastic_http_health"):
    from elastic_http_health.messages import Exchange, Response
    from elastic_http_health.metrics import Counts
    from elastic_http_health.options import Limits, Options, read_options
    from elastic_http_health.router import Router

    _ROUTER = Router(FakeAgentView(), 10.0, Options(token="secret"), ["localhost"], True, Counts())

    @target(
        (),
        b"GET /status?x=1 HTTP/1.1\r\nHost: localhost:80\r\nAuthorization: Bearer secret\r\n\r\n",
        b"GET /changes?after=0&wait=1e3 HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n",
        b"HEAD /livez?verbose HTTP/1.1\r\nHost: [::1]\r\n\r\nrest",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 7\r\n\r\n1234567",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"A" * 20_000,
    )
    def http_head(data):
        """A request to the health endpoint, in two pieces."""
        exchange, found = Exchange(Limits().head_bytes), None
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            found = found or (exchange.receive(piece) if piece else None)
        if found is not None:
            answer = found if isinstance(found, Response) else _ROUTER.answer(found)
            sent = exchange.send(answer) if isinstance(answer, Response) else b"HTTP/1.1 later"
            assert sent.startswith(b"HTTP/1.1 ")
            assert not sent.startswith(b"HTTP/1.1 500"), sent

    @target((ConfigurationError,), b"secret\n", b"\xff", b"x" * 2000)
    def token_file(data):
        path = written("token", data)
        found = read_options({"host": "127.0.0.1", "token_file": str(path), "connections": 1, "rate": 1.0}).bearer()
        assert found.isprintable()


if find_spec("elastic_notices") and find_spec("urllib3"):
    from elastic_notices import aws, azure, gcp, slurm, url, watched_file
    from elastic_notices.web import Answer as WebAnswer

    _NOW = 1_700_000_000.0
    _EVENT = {"EventType": "Reboot", "Resources": ["vm"], "EventStatus": "Scheduled", "NotBefore": ""}

    @target(
        (),
        b'{"action": "stop", "time": "2023-11-14T22:15:20Z", "noticeTime": "2023-11-14T22:15:20Z"}',
        b'{"at": 1700000060.5, "reason": "rack 7"}',
        json.dumps({"Events": [_EVENT, {**_EVENT, "NotBefore": "Tue, 14 Nov 2023 22:14:20 GMT"}]}).encode(),
        b"42 1700000060\n",
        b"2023-11-14T22:14:20Z\nrack 7",
        b"draining@\n",
        DEEP,
    )
    def notice(data):
        """Answers of metadata services, Slurm and a URL, and a file."""
        text = text_of(data)
        answer = WebAnswer(200, text)
        for decode in (
            lambda: aws.decode_action(answer, _NOW),
            lambda: aws.decode_rebalance(answer),
            lambda: azure.decode(answer, "vm", _NOW),
            lambda: gcp.decode(text, text, _NOW, True),
            lambda: slurm.decode_end(text, "42", _NOW),
            lambda: slurm.decode_state(text),
            lambda: url.decode(answer, _NOW),
            lambda: watched_file.decode(text, _NOW),
        ):
            with suppress(ValueError):
                found = decode()
                assert found is None or printable(found.reason) == found.reason.strip() != ""
                assert found is None or found.at is None or found.at > _NOW


if find_spec("elastic_c10d"):
    from elastic_c10d.endpoint import parse_endpoints as c10d_endpoints

    @target((ConfigurationError,), b"node7:29400", b"a:1, b:2 ,[::1]", b"localhost:0")
    def c10d_endpoint(data):
        str(c10d_endpoints(text_of(data)))


if find_spec("elastic_etcd") and find_spec("google.protobuf"):
    from elastic_etcd.backend.key_cache import shown_key
    from elastic_etcd.backend.keys import Keys as EtcdKeys
    from elastic_etcd.backend.keys import StateKey
    from elastic_etcd.client import messages
    from elastic_etcd.client.errors import EtcdError, Failure, fault, is_mistrust, judge, refusal
    from elastic_etcd.client.messages import rpc
    from elastic_etcd.client.reflector import misses, reached, start_after
    from elastic_etcd.client.values import Compare, Field, Get, KeyValue, Put, Transaction
    from elastic_etcd.parameters import parse_endpoints, read_parameters
    from elastic_etcd.server.cluster import (
        Answer,
        Cluster,
        Place,
        leaving,
        majority_lost,
        members_of,
        shown,
    )
    from elastic_etcd.server.cluster import decide as decide_member
    from elastic_etcd.server.gateway import UNUSABLE
    from elastic_etcd.server.process import plain, version_in
    from google.protobuf.message import DecodeError

    ETCD = EtcdKeys("elastic", "job")
    ASKED = Transaction([Compare(b"a", Field.VERSION, 0)], [Put(b"a", b""), Get(b"b")], [Get(b"a")])

    def _message(method, **shown):
        return type(method.parse(b""))(**shown).SerializeToString()

    _PAIR = {"key": ETCD.node("a/1"), "value": b"0123abcd:{}", "mod_revision": 5, "create_revision": 3, "lease": 7}
    _RANGE = {"header": {"revision": 9, "cluster_id": 1}, "kvs": [_PAIR], "count": 1}

    @target(
        (EtcdError, DecodeError),
        _message(rpc().range, **_RANGE),
        _message(rpc().txn, succeeded=False, responses=[{"response_range": _RANGE}]),
    )
    def etcd_answer(data):
        """Answers of an etcd server, and the contents of its keys."""
        _values([KeyValue(ETCD.nodes + data, data, 3, 5, 1, 7)])
        _values(messages.range_of(rpc().range.parse(data)).values)
        done = messages.committed(rpc().txn.parse(data), ASKED)
        for found in done.ranges:
            _values(found.values)

    def _values(pairs):
        for pair in pairs:
            node = ETCD.key_of(pair.key)
            assert node is None or (ETCD.node(node) == pair.key and node.isprintable())
            assert shown_key(pair.key).isprintable()
            with suppress(ElasticError):
                StateKey(None, ETCD.state, FakeClock()).shown(pair)

    @target(
        (DecodeError,),
        _message(rpc().watch, header={"revision": 4, "cluster_id": 1}, created=True),
        _message(rpc().watch, header={"revision": 9}, events=[{"type": 1, "kv": _PAIR}, {"kv": _PAIR}]),
        _message(rpc().watch, canceled=True, cancel_reason="etcdserver: permission denied", compact_revision=7),
    )
    def etcd_watch(data):
        """An etcd server's watch notifications: messages, each after its length in two bytes."""
        after = 2
        while data:
            size = int.from_bytes(data[:2], "big") % (len(data) + 1) or len(data)
            message = rpc().watch.parse(data[2 : 2 + size] if len(data) > size else data)
            misses(message, after)
            _values(messages.key_value(event.kv) for event in message.events)
            after, data = max(after, reached(message)), data[2 + size :]
            assert 0 < start_after(after) < 2**63

    @target((), b"connection refused", b"\x1b[31m", b'{"level":"warn","msg":"x","error":"y"}', DEEP)
    def etcd_words(data):
        """Texts from an etcd server: errors, log lines, its version."""
        text = text_of(data)
        for code in ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"):
            failure = Failure(code, text)
            judge(failure)
            texts = (fault(failure, True), fault(failure, False), str(refusal(failure, "a:1")), plain(text))
            assert all(one.isprintable() and len(one) <= LONGEST_WORD for one in texts), code
            is_mistrust(failure)
        version_in(data)

    PLACES = tuple(Place(f"n{number}", 2379, 2380) for number in range(4))
    SERVED = Cluster("job", PLACES)
    _MEMBERS = [
        {"ID": f"{number}", "name": SERVED.name(place), "peerURLs": [place.peer_url], "clientURLs": [place.url]}
        for number, place in enumerate(PLACES[:3])
    ]

    @target(
        UNUSABLE,
        json.dumps(_MEMBERS).encode(),
        json.dumps([*_MEMBERS[1:], {"id": 9, "peerURLs": [PLACES[0].peer_url], "isLearner": True}]).encode(),
        DEEP,
    )
    def etcd_members(data):
        """A cluster member's list of the others, and the decision based on it."""
        found = members_of(json.loads(data))
        answers = [
            Answer(place, False, found, healthy) for place, healthy in zip(PLACES[:2], (True, False), strict=True)
        ]
        for own in PLACES[2:]:
            decide_member(SERVED, own, answers)
            leaving(SERVED, own, answers)
            SERVED.initial_with(own, found)
        assert all(line.isprintable() for line in (*shown(SERVED, answers, "1"), majority_lost(SERVED, answers)))

    @target((ConfigurationError,), b"a:1,b", b"https://[::1]:7/,http://b\nuser=u\npassword=p", b"h\nlease_ttl=3")
    def etcd_options(data):
        """The endpoints, and options, one per line."""
        first, *rest = text_of(data).split("\n")
        with suppress(ConfigurationError):
            parse_endpoints(first)
        options = dict(line.partition("=")[::2] for line in rest if not line.startswith("password_file"))
        read_parameters(first, options)


if find_spec("elastic_etcd_legacy") and find_spec("google.protobuf"):
    from elastic_etcd_legacy.decide import decide, nodes_waiting
    from elastic_etcd_legacy.document import from_bytes, keep_alive_in, to_bytes, view_of
    from elastic_etcd_legacy.settings import Keys as LegacyKeys
    from elastic_etcd_legacy.steps import Bounds, close, give_up

    LEGACY = LegacyKeys("/p", "job")

    @target(
        (RendezvousStateError,),
        b'{"format":1,"status":"joinable","creator":"","participants":["a"],"confirmed":[],"waiting":[]}',
        b'{"format":1,"status":"final","creator":"","participants":["a","b"],"confirmed":["a","b"],"waiting":["c"]}'
        b'\n["host", 1]',
        DEEP,
    )
    def legacy_document(data):
        """The older protocol's data in etcd: its document, and keep-alives, one per line."""
        first, *rest = data.split(b"\n")
        pairs = {LEGACY.document: KeyValue(LEGACY.document, first, 5, 7, 1, 9)}
        for rank, value in enumerate(rest):
            pairs[LEGACY.alive(5, rank)] = KeyValue(LEGACY.alive(5, rank), value, 6, 6, 1, 8)
        view = view_of(LEGACY, pairs)
        for now in (0.0, 100.0):
            decide(view, "a", Bounds(2, 3), 50.0, now)
        assert nodes_waiting(view, 5, Bounds(2, 3)) >= 0
        give_up(view.document, "a")
        close(view.document)
        for value in rest:
            keep_alive_in(value)
        assert from_bytes(to_bytes(from_bytes(first))) == from_bytes(first)


if find_spec("elastic_warm"):
    from elastic_warm import learned_imports

    @target(
        (),
        b'{"format": 1, "modules": {}, "left": {}, "seconds": 1, "environment": {}, "without": [], "varying": []}',
        b'{"format": 1, "seconds": 1' + b"0" * 400 + b"}",
        DEEP,
    )
    def warm_cache(data):
        """What an earlier run has recorded for the warm start."""
        with suppress(UnicodeDecodeError):
            learned_imports.from_json(data.decode("ascii"))

    @target((), b"0\t1\tnumpy\t/usr/lib/numpy.py", b"1\t0\tnumpy\t\n7\t7\t__main__\tx")
    def warm_lines(data):
        """The workers' reports of their imports."""
        known = learned_imports.LearnedImports()
        for line in data.split(b"\n"):
            known.hear(line.decode("utf-8", "surrogateescape"), 1)
        json.loads(known.as_json({}, (), ()))
