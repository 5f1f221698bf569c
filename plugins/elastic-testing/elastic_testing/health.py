"""The contract for health endpoints, written as tests."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, Literal

from elastic_core.plugin import AgentPhase, Member, SystemClock
from elastic_testing.fakes import FakeAgentView
from elastic_testing.waiting import LONG, open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.plugin import AgentView, HealthCheckServer, Probe

    Make = Callable[[AgentView, int, float], HealthCheckServer]

Question = Literal["alive", "ready", "status"]

_TIMEOUT = 30.0
_PORTS = range(10_000, 28_000)  # outside the ephemeral range, so that the kernel gives none of them to another program


class HealthContract:
    """See `interfaces.health.HealthCheckServer`. To use it with pytest, inherit from this class and define a fixture
    `make` and a method `ask`. `make` returns a function that creates an endpoint from a view, a port and a timeout in
    seconds.

    Attributes:
        takes_ports: whether the endpoint listens on the given TCP port, at least on the loopback address (true).
        at_once: time limit in seconds for stopping, even on a slow machine with connected clients (10).
    """

    takes_ports: ClassVar[bool] = True
    at_once: ClassVar[float] = 10.0

    def ask(self, server: HealthCheckServer, port: int, what: Question) -> Probe:
        """Query the endpoint in the same way as its users. For `alive` and `ready`, returns the result and its reason.
        For `status`, returns true and the whole response as a string. Raises OSError if the endpoint does not respond
        within 10 seconds."""
        raise NotImplementedError

    def test_stuck_loop_is_not_alive(self, make: Make) -> None:
        view = FakeAgentView()
        with self._serving(make, view) as (server, port):
            view.stuck_for = _TIMEOUT / 2
            assert self.ask(server, port, "alive").ok
            view.stuck_for = _TIMEOUT + 15
            begun = SystemClock().now()
            stuck = self.ask(server, port, "alive")
            took = int(SystemClock().now() - begun)
            assert not stuck.ok
            assert any(f"for {seconds} s" in stuck.reason for seconds in range(45, 47 + took)), stuck.reason
            view.stuck_for = 0.0
            assert self.ask(server, port, "alive").ok

    def test_dead_watchdog_is_not_alive(self, make: Make) -> None:
        view = FakeAgentView()
        with self._serving(make, view) as (server, port):
            view.fault = "its thread has ended"
            dead = self.ask(server, port, "alive")
            assert (dead.ok, "its thread has ended" in dead.reason) == (False, True)
            assert self.ask(server, port, "ready").ok

    def test_only_running_phase_is_ready(self, make: Make) -> None:
        view = FakeAgentView()
        with self._serving(make, view) as (server, port):
            for phase in AgentPhase:
                view.show(phase=phase, reason=f"because of {phase.value}: Ärger & 麻烦")
                found = self.ask(server, port, "ready")
                assert found.ok == (phase is AgentPhase.RUNNING), phase
                assert f"because of {phase.value}: Ärger & 麻烦" in found.reason
                assert self.ask(server, port, "alive").ok, phase

    def test_status_is_current(self, make: Make) -> None:
        view = FakeAgentView()
        with self._serving(make, view) as (server, port):
            status = self.ask(server, port, "status")
            assert (status.ok, "job" in status.reason, "running" in status.reason) == (True, True, True)
            view.show(phase=AgentPhase.STOPPING, reason="rank 3: exit code 41")
            status = self.ask(server, port, "status")
            assert ("stopping" in status.reason, "rank 3: exit code 41" in status.reason) == (True, True)

    def test_status_of_thousand_nodes(self, make: Make) -> None:
        view = FakeAgentView()
        view.show(members=tuple(Member(f"node{i}", f"host{i}", f"10.0.{i % 250}.1", "t", 8) for i in range(1000)))
        with self._serving(make, view) as (server, port):
            assert "node999" in self.ask(server, port, "status").reason

    def test_concurrent_queries_during_status_changes(self, make: Make) -> None:
        view = FakeAgentView()
        with self._serving(make, view) as (server, port), ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(self.ask, server, port, "status") for _ in range(40)]
            for number in range(200):
                view.show(round=number)
            assert all(answer.result(LONG).ok for answer in answers)

    def test_answers_only_between_start_and_stop(self, make: Make) -> None:
        port = _free_port()
        server = make(FakeAgentView(), port, _TIMEOUT)
        try:
            assert not self._answers(server, port)
            server.start()
            assert self._answers(server, port)
        finally:
            server.stop()
        assert not self._answers(server, port)

    def test_stop_is_idempotent_and_needs_no_start(self, make: Make) -> None:
        server = make(FakeAgentView(), _free_port(), _TIMEOUT)
        server.stop()
        with self._serving(make, FakeAgentView()) as (server, _):
            server.stop()
            server.stop()

    def test_port_in_use_raises_oserror(self, make: Make) -> None:
        self._expect_ports()
        with socket.create_server(("127.0.0.1", 0)) as other:
            server = make(FakeAgentView(), other.getsockname()[1], _TIMEOUT)
            try:
                with unittest.TestCase().assertRaises(OSError):
                    server.start()
            finally:
                server.stop()

    def test_port_is_reusable_immediately(self, make: Make) -> None:
        port = _free_port()
        for _ in range(5):
            with self._serving(make, FakeAgentView(), port) as (server, _):
                assert self.ask(server, port, "alive").ok

    def test_silent_clients_do_not_block_others(self, make: Make) -> None:
        self._expect_ports()
        with contextlib.ExitStack() as stack:
            server, port = stack.enter_context(self._serving(make, FakeAgentView()))
            for _ in range(20):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), LONG))
            assert self.ask(server, port, "alive").ok
            begun = SystemClock().now()
            server.stop()
            assert SystemClock().now() - begun < self.at_once

    def test_stop_leaves_no_threads_or_descriptors(self, make: Make) -> None:
        with self._serving(make, FakeAgentView()):
            pass  # the first endpoint may load modules, which stay loaded
        threads, files, view = set(threading.enumerate()), open_files(), FakeAgentView()
        with self._serving(make, view) as (server, port):
            self.ask(server, port, "status")
        for thread in set(threading.enumerate()) - threads:
            thread.join(LONG)
            assert not thread.is_alive(), f"the thread {thread.name} is still running"
        assert view.subscribers == 0
        assert open_files() - files == set()

    def _expect_ports(self) -> None:
        if not self.takes_ports:
            raise unittest.SkipTest("the endpoint does not listen on the given port (takes_ports)")

    @contextlib.contextmanager
    def _serving(
        self, make: Make, view: FakeAgentView, port: int | None = None
    ) -> Iterator[tuple[HealthCheckServer, int]]:
        port = _free_port() if port is None else port
        server = make(view, port, _TIMEOUT)
        server.start()
        try:
            yield server, port
        finally:
            server.stop()

    def _answers(self, server: HealthCheckServer, port: int) -> bool:
        try:
            return self.ask(server, port, "alive").ok
        except OSError:
            return False


def _free_port() -> int:
    for _ in range(100):
        port = secrets.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no free port in {_PORTS}")
