"""Findings about names, addresses, connections and ports, from given results and from loopback."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest
from elastic_doctor import network as n
from elastic_doctor.finding import Check, level_of
from elastic_doctor.network import Place, places_of, surroundings_of

from elastic_core.clock import SystemClock
from elastic_core.config import Settings, settings_from
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.support.sockets import cannot_bind

CLOCK = SystemClock()
PLACE = Place("node0", 29400)
INET, INET6 = int(socket.AF_INET), int(socket.AF_INET6)
FAR = n.Address(INET, ("10.0.0.1", 29400), local=False)
NEAR = n.Address(INET, ("10.0.0.2", 29400), local=True)
LOOPBACK = n.Address(INET, ("127.0.1.1", 29400), local=True)


@pytest.fixture
def never():
    """A function that accepts any arguments and does not return before the test ends."""
    over = threading.Event()
    yield lambda *_, **__: over.wait(60)
    over.set()


@pytest.fixture
def listener(quiet_port):
    with socket.create_server(("127.0.0.1", quiet_port)) as sock:
        yield sock


def record(backend):
    """The record of the installed backend, or one without any options."""
    return PluginManager.load({}).backend_named(backend) or RendezvousBackendRecord(backend, "a test", print)


@pytest.mark.parametrize(
    ("backend", "endpoint", "conf", "places"),
    [
        ("c10d", "node0", {}, [("node0", 29400)]),
        ("c10d", "[fe80::1]:5", {}, [("fe80::1", 5)]),
        ("static", "node0", {}, [("node0", 29500)]),
        ("etcd", "https://a:1, https://b/", {}, [("a", 1), ("b", 2379)]),
        ("c10d", "/shared/file", {"store_type": "file"}, []),
        ("c10d", "/shared/file", {"store-type": "file"}, []),
        ("local", "", {}, []),
        ("sqlite", "/shared/file.db", {}, []),
        ("sqlite", "file.db", {}, []),
        ("zookeeper", "a:2181,b:2181", {}, [("a", 2181), ("b", 2181)]),
    ],
)
def test_endpoint_hosts_are_listed(backend, endpoint, conf, places):
    settings = Settings(rdzv_backend=backend, rdzv_endpoint=endpoint, rdzv_conf=conf)
    assert places_of(settings, record(backend)) == tuple(Place(*place) for place in places)


@pytest.mark.parametrize(
    ("found", "nodes", "level", "words"),
    [
        (n.Lookup(PLACE, (FAR,), 0.1), 4, "ok", "node0 is 10.0.0.1"),
        (n.Lookup(PLACE, (NEAR,), 0.1), 4, "ok", "10.0.0.2 (this machine)"),
        (n.Lookup(PLACE, problem="no answer within 1 s"), 1, "fault", "/etc/hosts"),
        (n.Lookup(PLACE, (FAR,), 3.0), 4, "warning", "the lookup took 3.0 s"),
        (n.Lookup(PLACE, (LOOPBACK,), 0.1), 4, "note", "getent hosts node0"),
        (n.Lookup(PLACE, (LOOPBACK,), 0.1), 1, "ok", "127.0.1.1"),
        (n.Lookup(Place("127.0.0.1", 1), (LOOPBACK,), 0.1), 4, "warning", "no other machine"),
        (n.Lookup(Place("localhost", 1), (LOOPBACK,), 0.1), 4, "warning", "only on the store's host"),
        (n.Lookup(Place("localhost", 1), (LOOPBACK,), 0.1), 1, "ok", "localhost"),
        (n.Lookup(PLACE, (FAR, NEAR), 0.1), 4, "warning", "several machines"),
        (n.Lookup(PLACE, (FAR, replace(FAR, sockaddr=("10.0.0.3", 1))), 0.1), 4, "note", "several addresses"),
        (n.Lookup(PLACE, (FAR, replace(FAR, family=INET6)), 0.1), 4, "ok", "node0"),
    ],
)
def test_name_lookup_is_judged(found, nodes, level, words):
    finding = n.judged_name(found, nodes)
    assert level_of(finding) == level
    assert words in finding.message + finding.remedy


def test_reverse_lookup_is_judged():
    assert level_of(n.judged_reverse(n.ReverseLookup("::ffff:10.0.0.1", "node0", 0.002), "ours")) == "ok"
    assert "no name, in 2.0 ms" in n.judged_reverse(n.ReverseLookup("::ffff:10.0.0.1", "", 0.002), "ours").message
    slow = n.judged_reverse(n.ReverseLookup("::ffff:10.0.0.1", "", 5.0), "ours")
    assert (level_of(slow), "after 5.0 s" in slow.message) == ("warning", True)
    assert "'::ffff:10.0.0.1 NAME' to /etc/hosts" in slow.remedy
    assert "RES_OPTIONS" in slow.remedy
    assert "no answer in time" in n.judged_reverse(n.ReverseLookup("::ffff:10.0.0.1"), "ours").message


@pytest.mark.parametrize(
    ("advertised", "addresses", "nodes", "at_loopback", "level"),
    [
        ("10.0.0.2", (NEAR,), 4, False, "ok"),
        (None, (), 4, False, "warning"),
        ("nobody", (), 4, False, "fault"),
        ("10.0.0.1", (FAR,), 4, False, "warning"),
        ("127.0.1.1", (LOOPBACK,), 4, False, "warning"),
        ("127.0.1.1", (LOOPBACK,), 4, True, "ok"),
        ("127.0.1.1", (LOOPBACK,), 1, False, "ok"),
    ],
)
def test_advertised_address_is_judged(advertised, addresses, nodes, at_loopback, level):
    finding = n.judged_address(advertised, addresses, True, nodes, at_loopback)
    assert level_of(finding) == level
    assert bool(finding.remedy) == (level != "ok")


def connections(*found, is_hosted=True):
    return [(level_of(item), item.remedy) for item in n.judged_connections(found, is_hosted)]


def test_connections_to_the_store_are_judged():
    up, refused, lost = (n.Connected(FAR, problem) for problem in ("", "connection refused", "timed out"))
    assert connections(up, replace(refused, address=NEAR), lost)[0] == ("ok", "")
    assert [level for level, _ in connections(up, refused, lost)] == ["ok", "note", "note"]
    assert connections(refused)[0] == ("note", "the machine answers; start elastic run or elastic serve there")
    assert "this machine would host" in connections(replace(refused, address=NEAR))[0][1]
    assert connections(refused, is_hosted=False)[0][0] == "warning"
    ((level, advice),) = connections(lost)
    assert (level, "firewall" in advice) == ("warning", True)


def test_absent_store_is_judged():
    assert level_of(n.judged_store_absence(False, "h:1", True)) == "note"
    assert "elastic serve --rdzv-endpoint h:1" in n.judged_store_absence(True, "h:1", True).remedy
    assert level_of(n.judged_store_absence(True, "h:1", False)) == "fault"
    service = n.judged_store_absence(False, "h:1", False)
    assert (level_of(service), service.remedy) == ("warning", "start the service before the job")


def test_ports_are_judged():
    assert level_of(n.judged_port(Check.PORT, "it", 29400, "")) == "ok"
    assert "ss -ltnp" in n.judged_port(Check.PORT, "it", 29400, "already in use").remedy
    assert "require root" in n.judged_port(Check.PORT, "it", 80, "not allowed").remedy


@pytest.mark.integration
def test_name_lookup_has_a_time_limit(never):
    found = n.resolved(Place("localhost", 29400), 15.0, CLOCK)
    assert "127.0.0.1:29400" in map(str, found.addresses)
    assert all(address.local and address.is_loopback for address in found.addresses)
    assert n.resolved(PLACE, 0.05, CLOCK, never).problem == "no answer within 0.05 s"

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert n.resolved(PLACE, 15.0, CLOCK, unknown).problem == "Name or service not known"
    assert n.resolved(Place("a..b", 1), 15.0, CLOCK).problem


def test_reverse_lookup_has_a_time_limit(never):
    asked = []

    def answer(sockaddr, flags):
        asked.append(sockaddr[0])
        return ("node0", "0") if len(asked) == 1 else (sockaddr[0], "0")

    assert n.looked_up_backwards("10.0.0.1", 15.0, CLOCK, answer).name == "node0"
    assert n.looked_up_backwards("fe80::1", 15.0, CLOCK, answer).name == ""
    assert asked == ["::ffff:10.0.0.1", "fe80::1"]
    assert n.looked_up_backwards("10.0.0.1", 0.05, CLOCK, never) == n.ReverseLookup("::ffff:10.0.0.1")
    assert n.looked_up_backwards("127.0.0.1", 20.0, CLOCK).address == "::ffff:127.0.0.1"


def test_open_and_closed_local_ports_are_detected(listener):
    address = n.Address(INET, listener.getsockname(), True)
    found = n.connected(address, 15.0, CLOCK)
    assert (found.problem, found.ours) == ("", "127.0.0.1")
    listener.close()
    assert n.connected(address, 15.0, CLOCK).refused
    with n.listening(4) as port:
        assert not n.connected(n.Address(INET, ("127.0.0.1", port), True), 15.0, CLOCK).problem
        assert cannot_bind(INET, ("127.0.0.1", port))
    assert n.connected(n.Address(INET, ("127.0.0.1", port), True), 15.0, CLOCK).refused


def surroundings(listener, backend="c10d", **values):
    host, port = listener.getsockname()
    endpoint = {"rdzv_backend": backend, "rdzv_endpoint": f"{host}:{port}", "rdzv_id": "j", "nnodes": "2"}
    return surroundings_of(settings_from({**endpoint, **values}), record(backend), 2, 15.0, CLOCK)


def levels(found):
    return {(item.name, level_of(item)) for item in found.findings}


def test_served_endpoint_is_examined(listener):
    here = surroundings(listener)
    assert (here.is_served, here.may_host, here.advertised) == (True, True, "127.0.0.1")
    assert {("connection", "ok"), ("address", "ok"), ("name", "warning")} <= levels(here)
    assert "port" not in dict(levels(here))
    listener_of_health = {"health": "http", "health_port": listener.getsockname()[1]}
    assert ("health-port", "fault") in levels(surroundings(listener, **listener_of_health))
    port = listener.getsockname()[1]
    local = surroundings_of(settings_from({"master_port": port}), None, 1, 15.0, CLOCK)
    assert levels(local) == {("port", "fault")}


def test_unserved_endpoint_is_noted(listener):
    where = listener.getsockname()
    listener.close()
    with socket.socket() as again:
        again.bind(where)
        here = surroundings(again, local_addr="192.0.2.7")
    assert (here.is_served, here.may_host, here.advertised) == (False, True, "192.0.2.7")
    assert {("connection", "note"), ("address", "warning")} <= levels(here)


def test_malformed_endpoint_is_a_fault(listener):
    assert levels(surroundings(listener, rdzv_endpoint="a:b:c")) == {("name", "fault")}
    assert surroundings(listener, "sqlite", rdzv_endpoint="/f.db").places == ()
