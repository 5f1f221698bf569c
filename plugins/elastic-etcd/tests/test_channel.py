"""How soon a channel reconnects to an unreachable server, measured at the listening socket."""

import contextlib
import itertools
import socket
import time

import pytest
from elastic_etcd.client.channel import open_channel

pytestmark = pytest.mark.integration

LONG = 60.0


def gaps(attempts, silent=False):
    """Seconds between the first attempts to connect to a server that hangs up, or, if `silent`, sends nothing."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(LONG)
        channel = open_channel(f"127.0.0.1:{listener.getsockname()[1]}", None)
        stack.callback(channel.close)
        channel.unary_unary("/nobody/knows").future(b"", wait_for_ready=True)
        times = []
        for _ in range(attempts):
            link = stack.enter_context(listener.accept()[0])
            times.append(time.monotonic())
            if not silent:
                link.close()
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_pauses_between_connection_attempts_are_bounded():
    found = gaps(11)
    assert sum(found) < 25  # about 40 s if pauses were unbounded, and more with gRPC's defaults
    assert min(found[:2]) < max(found[5:]) / 2  # the first attempts follow each other sooner


def test_silent_server_does_not_delay_the_next_attempt():
    assert sum(gaps(4, silent=True)) < 30  # 60 s with gRPC's defaults
