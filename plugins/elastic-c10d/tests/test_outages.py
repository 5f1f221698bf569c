"""The store dies, restarts empty, or is paused; the port is closed, or another server listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.connection import StoreDialer
from elastic_c10d.endpoint import Endpoint
from elastic_c10d.tcp_connector import TcpConnector
from elastic_c10d.torch_store import distributed

from elastic_core.errors import ConfigurationError, RendezvousConnectionError
from elastic_core.interfaces.backend import EntryDroppedError
from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler
from elastic_core.rendezvous.roster_log import values_of
from elastic_core.rendezvous.versions import Keys
from elastic_core.support.sockets import ip_address


def test_dead_store_raises_a_one_line_error_with_its_cause(over, server_process):
    server = server_process()
    backend = over(server.port)
    backend.get_state()
    server.kill()
    with pytest.raises(RendezvousConnectionError, match=r"reading the state at 127\.0\.0\.1") as caught:
        backend.get_state()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        backend.get_state()


def test_wait_notices_a_replaced_store_with_new_state(over, server_process, eventually, fails):
    server = server_process()
    one = over(server.port)
    _, old, _ = one.set_state(b"1")
    assert not one.wait_for_state(old, 0.05)
    server.kill()
    server.start()
    other = over(server.port)
    other.set_state(b"other")
    assert fails(lambda: one.wait_for_state(old, 20))
    assert one.wait_for_state(old, 20) is True
    eventually(lambda: not fails(one.get_state))
    assert one.get_state()[0] == b"other"


def test_short_pause_of_the_store_only_delays_calls(over, server_process, background):
    server = server_process()
    backend = over(server.port)
    _, token, _ = backend.set_state(b"1")
    server.pause()
    reading = background(backend.get_state)
    waiting = background(lambda: backend.wait_for_state(token, 20))
    assert reading.running
    server.resume()
    assert reading.result() == (b"1", token)
    backend.set_state(b"2", token)
    assert waiting.result() is True


def test_call_to_a_paused_store_times_out_without_side_effects(over, server_process, eventually, fails):
    server = server_process()
    backend = over(server.port, read_timeout=8.0, connect_timeout=4.0)  # longer than any stall of the server
    _, token, _ = backend.set_state(b"1")
    backend.announce("a", b"x")
    server.pause()
    assert fails(lambda: backend.beat("a", True, False))
    begun = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="does not answer as a TCPStore"):
        backend.get_state()
    assert time.monotonic() - begun < 30
    server.resume()
    eventually(lambda: not fails(backend.get_state))
    assert backend.get_state() == (b"1", token)
    assert [(seen.key, seen.entry) for seen in backend.roster()] == [("a", b"x")]


def test_close_ends_calls_to_a_paused_store(over, server_process, background):
    server = server_process()
    backend = over(server.port)
    backend.get_state()
    server.pause()
    stuck = background(backend.get_state)
    backend.close()
    with pytest.raises(RendezvousConnectionError):
        stuck.result(60)


def test_close_ends_the_first_call_of_a_connection(server_process, background):
    server, paused = server_process(), threading.Event()

    class Pausing(TcpConnector):
        def connect(self, aside=False):
            made = super().connect(aside)
            server.pause()
            paused.set()
            return made

    backend = C10dRendezvousBackend(Pausing(Endpoint("127.0.0.1", server.port), read_timeout=300.0), "job")
    stuck = background(backend.get_state)
    assert paused.wait(60)
    backend.close()
    with pytest.raises(RendezvousConnectionError):
        stuck.result(60)


def connecting(host, port, **options):
    return TcpConnector(Endpoint(host, port), **{"patience": 0.3, "connect_timeout": 1.0} | options)


def test_error_lists_every_address_of_a_name(free_port):
    port = free_port()
    with pytest.raises(RendezvousConnectionError) as caught:
        connecting("localhost", port).connect()
    for *_, sockaddr in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        assert str(ip_address(str(sockaddr[0]))) in str(caught.value)


def test_server_that_is_not_a_tcpstore_is_reported(listener):
    connector = connecting("127.0.0.1", listener)
    with pytest.raises(RendezvousConnectionError, match=r"does not answer as a TCPStore .*port may be wrong"):
        connector.connect()
    connector.close()


@pytest.fixture
def slow_import():
    """While `load` imports torch, `begun` is set, and the import ends only when the test sets `release`."""
    state = SimpleNamespace(begun=threading.Event(), release=threading.Event())

    def load():
        state.begun.set()
        state.release.wait(60)
        return distributed()

    state.load = load
    yield state
    state.release.set()


def test_connect_timeout_excludes_the_import_of_torch(slow_import, listener, background):
    dialer = StoreDialer(load=slow_import.load)
    waiting = background(lambda: dialer.dial("127.0.0.1", listener, "there", timeout=0.01))
    assert slow_import.begun.wait(60)
    assert not waiting.over(0.5)
    slow_import.release.set()
    with pytest.raises(RendezvousConnectionError, match=r"does not answer as a TCPStore \(waited 0.01 s\)"):
        waiting.result(60)
    dialer.close()


def test_close_ends_a_connect_that_imports_torch(slow_import, listener, background):
    dialer = StoreDialer(load=slow_import.load)
    waiting = background(lambda: dialer.dial("127.0.0.1", listener, "there", timeout=100.0))
    assert slow_import.begun.wait(60)
    dialer.close()
    with pytest.raises(RendezvousConnectionError, match="this side was closed"):
        waiting.result(20)  # the import alone would take longer


@pytest.mark.parametrize(
    ("listens", "answer", "join"),  # the answer arrives long before the join timeout
    [
        (False, "connection refused", 8.0),
        pytest.param(True, "does not answer as a TCPStore", 16.0, marks=pytest.mark.nightly),
    ],
)
def test_short_join_timeout_still_reports_the_answer(listens, answer, join, listener, free_port):
    port = listener if listens else free_port()
    times = {"join_timeout": join, "connect_timeout": 60.0}
    params = RendezvousParameters("c10d", f"127.0.0.1:{port}", "job", 1, 2, is_host=False, **times)
    handler = get_rendezvous_handler(params)
    try:
        with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port}.*{answer}"):
            handler.next_rendezvous()
    finally:
        handler.shutdown()


def test_connect_waits_for_a_late_store(server_process, free_port, background):
    port = free_port()
    connection = background(lambda: connecting("127.0.0.1", port, patience=60.0, connect_timeout=20.0).connect())
    server_process(port)
    assert connection.result().where == f"127.0.0.1:{port}"


def test_close_ends_connect_retries(free_port, background):
    connector = connecting("127.0.0.1", free_port(), patience=100.0)
    waiting = background(connector.connect)
    connector.close()
    with pytest.raises(RendezvousConnectionError):
        waiting.result(60)


def test_close_ends_a_stuck_connect_and_leaks_nothing(listener, background, eventually):
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    connector = connecting("127.0.0.1", listener, patience=100.0, connect_timeout=100.0)
    waiting = background(connector.connect)
    eventually(lambda: any(thread.name == "rendezvous-connect" for thread in threading.enumerate()))
    connector.close()
    with pytest.raises(RendezvousConnectionError):
        waiting.result(60)
    connector = connecting("127.0.0.1", listener)
    for _ in range(3):
        with pytest.raises(RendezvousConnectionError):
            connector.connect()
    connector.close()
    del connector
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 1)
    assert threading.active_count() <= threads + 2


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_close_ends_a_reconnect_to_a_lost_store(server_process, background, how):
    server = server_process()
    connector = connecting("127.0.0.1", server.port, connect_timeout=100.0)
    kept = [connector.connect(), connector.connect(aside=True)]
    getattr(server, how)()
    waiting = background(lambda: connector.connect(aside=True))
    connector.close()
    with pytest.raises(RendezvousConnectionError):
        waiting.result(60)
    server.kill()
    for connection in kept:
        connection.release()


def test_close_ends_a_first_additional_connection_whose_store_ends(server_process, background, eventually):
    server = server_process()
    connector = connecting("127.0.0.1", server.port, connect_timeout=100.0)
    kept = connector.connect()
    server.pause()
    waiting = background(lambda: connector.connect(aside=True))
    peers = psutil.Process().net_connections
    eventually(lambda: sum(bool(it.raddr) and it.raddr.port == server.port for it in peers("tcp")) == 2)
    connector.close()
    server.kill()
    with pytest.raises(RendezvousConnectionError):
        waiting.result(60)
    kept.release()


QUIET = """
import sys
from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.connection import StoreDialer
from elastic_c10d.endpoint import Endpoint
from elastic_c10d.tcp_connector import TcpConnector
from elastic_c10d import C10dRendezvousBackend, StoreServer
import os
server = StoreServer(Endpoint("127.0.0.1", 0))
backend = C10dRendezvousBackend(TcpConnector(Endpoint("127.0.0.1", server.start()), connect_timeout=20.0), "job")
backend.wait_for_state(None, 0.05)
server.stop()
for _ in range(2):
    try:
        backend.get_state()
    except Exception as error:
        print(error)
assert "TORCH_CPP_LOG_LEVEL" not in os.environ
"""


def test_torch_prints_no_traces_and_environment_is_unchanged():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    assert "refused" in done.stdout


def test_two_hundred_backends_leave_no_threads_and_no_sockets(over, port, eventually):
    def cycle():
        backend = over(port)
        backend.announce("a", b"")
        backend.wait_for_state(None, 0.001)
        backend.wait_for_roster(0.001)
        backend.roster()
        backend.close()

    cycle()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        cycle()
    eventually(lambda: threading.active_count() <= threads)  # a finished thread may still be ending
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 3)


def test_read_of_a_deleted_key_gives_up_soon(port):
    """torch's `multi_get` waits for a deleted key. The connection must remain usable."""
    connection = TcpConnector(Endpoint("127.0.0.1", port)).connect()
    connection.shorten_timeout(0.2)
    connection.store.set("there", b"1")
    assert values_of(connection.store, ["there", "deleted"]) is None
    assert values_of(connection.store, ["there"]) == [b"1"]
    assert connection.fetch("deleted", 0.01, threading.Event()) is None
    assert values_of(connection.store, ["there"]) == [b"1"]


def test_deleted_keys_end_all_waits(over, port, client, background):
    backend, store = over(port), client()
    _, token, _ = backend.set_state(b"1")
    backend.announce("a", b"1")
    backend.roster()
    assert not backend.wait_for_state(token, 0.01) and not backend.wait_for_roster(0.01)
    waits = [
        background(lambda: backend.wait_for_state(token, 60)),
        background(lambda: backend.wait_for_roster(60)),
    ]
    assert not any(waiting.over(0.2) for waiting in waits)
    keys = Keys("job", store.get(Keys("job").id).decode())
    for key in (keys.id, keys.head, keys.slots, keys.base, keys.state(1), keys.slot(1), keys.beats(1, "a")):
        store.delete_key(key)
    with pytest.raises(EntryDroppedError):
        backend.beat("a", leading=False, look=False)
    assert [waiting.result(30) for waiting in waits] == [True, False]


def test_server_listens_at_an_ipv4_mapped_address():
    from elastic_c10d import StoreServer

    server = StoreServer(Endpoint("::ffff:127.0.0.1", 0))
    port = server.start()
    socket.create_connection(("127.0.0.1", port), 60).close()
    server.stop()


def test_server_listens_at_the_endpoint_of_this_machine():
    from elastic_c10d import StoreServer

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = StoreServer(f"no-such-host.invalid:{port},192.0.2.1:{port},127.0.0.1:{port}")
    assert (server.start(), server.endpoint) == (port, f"127.0.0.1:{port}")
    server.stop()


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [("192.0.2.1:1", "not an address"), ("no-such-host.invalid:1", "unknown")],
)
def test_serving_at_an_address_of_another_machine_is_refused(endpoint, found):
    from elastic_c10d import StoreServer

    with pytest.raises(ConfigurationError, match=found):
        StoreServer(endpoint).start()


def test_closed_dialer_starts_no_constructor():
    """Nothing would end its thread, and the process would abort at its exit."""
    dialer, begun = StoreDialer(), []
    dialer.close()
    with pytest.raises(RendezvousConnectionError, match="this side was closed"):
        dialer.run(lambda: begun.append(1), 1, "there", 1.0)
    assert not begun
