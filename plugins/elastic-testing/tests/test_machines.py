"""Simulated machines: faults of a link take effect, and end when they are removed."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from elastic_testing.machines import machines, missing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(not shutil.which("nft"), reason="needs Debian's nftables"),
]

SENT = 300
SEND = f"""
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({SENT}):
    out.sendto(b"%06d" % number + bytes(100), (sys.argv[1], 999))
    time.sleep(0.002)
"""
RECEIVE = """
import socket
found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
found.bind(("", 999))
print("ready", flush=True)
found.settimeout(2.0)
try:
    while True:
        print(int(found.recv(200)[:6]))
except TimeoutError:
    pass
"""


@pytest.fixture(scope="module")
def link():
    with machines(2) as made:
        yield made


def arrived(link):
    """Send packets from the first machine to the second; returns their numbers in order of arrival."""
    there = subprocess.Popen([*link[1].through, sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
    with there:
        assert there.stdout.readline() == "ready\n"
        subprocess.run([*link[0].through, sys.executable, "-c", SEND, link[1].address], check=True)
        return [int(line) for line in there.stdout]


def test_drops_loses_packets(link):
    link[1].drops(10)
    found = arrived(link)
    link[1].drops(0)
    assert SENT * 0.7 < len(found) < SENT
    assert found == sorted(set(found))


def test_disorders_reorders_and_duplicates_packets(link):
    link[0].disorders(4)
    found = arrived(link)
    link[0].disorders(0)
    assert found != sorted(found)
    assert len(found) > len(set(found))


def test_narrow_link_with_a_short_queue_loses_most_packets(link):
    link[0].shape("tbf", "rate", "64kbit", "burst", "2kb", "limit", "4kb")
    found = arrived(link)
    link[0].shape()
    assert len(found) < SENT / 2


def test_link_is_restored_after_all_faults(link):
    assert arrived(link) == list(range(SENT))
