"""For all tests: Hypothesis that has patience, ports that come back, and the keyboard."""

from __future__ import annotations

import contextlib
import random
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("hypothesis"):  # the tests of the packages do without
    from hypothesis import HealthCheck, settings

    # How long an example takes is the machine's affair: it may stall, and no test is about that.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


@pytest.fixture
def quiet_port():
    """A free port that the kernel gives to nobody who asks for any: who lets go of it finds it free again. Any port
    where the kernel gives them all."""
    from elastic_core.errors import ConfigurationError
    from elastic_core.support.sockets import PortReservation

    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(first - 12_000, 1024), first - 4_000)  # not so near as the ports that torch is used to
    for port in (*random.sample(below, len(below)), 0):
        with contextlib.suppress(ConfigurationError):
            reservation = PortReservation(port)
            reservation.release()
            return reservation.port
    raise AssertionError("no port is free")


@pytest.fixture
def interruptible():
    """Also where this process was started in the background, by a shell that has it ignore the keyboard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
