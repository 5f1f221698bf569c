"""A channel to a server that is away comes back soon: when it tries to connect, seen from where it connects to.

A machine that stalls makes some of the gaps between attempts long; a fault makes all of them long.
"""

import contextlib
import itertools
import socket
import time

from elastic_etcd.client.channel import open_channel

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


def test_the_first_attempts_follow_each_other_at_once():
    assert any(sum(gaps(3)) < 1.2 for _ in range(5))  # two seconds and a half, if it were left to gRPC


def test_however_long_the_server_is_away_there_is_an_attempt_every_second():
    assert (
        min(gaps(8)[5:]) < 1.5
    )  # it would be 10 s and growing if it were left to gRPC, 2 s and growing without a bound


def test_a_server_that_accepts_and_says_nothing_holds_no_attempt_up():
    assert min(gaps(3, silent=True)) < 5.0  # 20 s, if it were left to gRPC
