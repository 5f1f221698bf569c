"""Fuzz targets of elastic-etcd. See `tests/fuzz/targets.py`."""

from __future__ import annotations

import json
from contextlib import suppress

from elastic_etcd.backend.key_cache import shown_key
from elastic_etcd.backend.keys import Keys, StateKey
from elastic_etcd.client import messages
from elastic_etcd.client.errors import EtcdError, Failure, fault, is_mistrust, judge, refusal
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.reflector import misses, reached, start_after
from elastic_etcd.client.values import Compare, Field, Get, KeyValue, Put, Transaction
from elastic_etcd.parameters import parse_endpoints, read_parameters
from elastic_etcd.server.cluster import Answer, Cluster, Place, decide, leaving, majority_lost, members_of, shown
from elastic_etcd.server.gateway import UNUSABLE
from elastic_etcd.server.process import plain, version_in
from elastic_testing import FakeClock
from fuzz.targets import DEEP, LONGEST_WORD, target, text_of
from google.protobuf.message import DecodeError

from elastic_core.errors import ConfigurationError, ElasticError

ETCD = Keys("elastic", "job")
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
    """A cluster member's list of the members, and the decision based on it."""
    found = members_of(json.loads(data))
    answers = [Answer(place, False, found, healthy) for place, healthy in zip(PLACES[:2], (True, False), strict=True)]
    for own in PLACES[2:]:
        decide(SERVED, own, answers)
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
