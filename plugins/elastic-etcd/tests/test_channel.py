"""A channel to a server that is away comes back soon: when it tries to connect, seen from where it connects to."""

import contextlib
import itertools
import socket
import time

import pytest
from elastic_etcd.client.channel import open_channel

pytestmark = pytest.mark.integration

LONG = 60.0


def gaps(attempts, silent=False):
    """Seconds between the first attempts to connect to what hangs up at once, or, if `silent`, says nothing."""
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
    assert sum(found) < 25  # some 40 s if pauses had no bound, and more if all were left to gRPC
    assert min(found[:2]) < max(found[5:]) / 2  # the first attempts follow each other sooner


def test_silent_server_does_not_delay_the_next_attempt():
    assert sum(gaps(4, silent=True)) < 30  # 60 s, if it were left to gRPC
