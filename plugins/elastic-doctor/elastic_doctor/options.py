"""The flags of `elastic doctor`."""

from __future__ import annotations

from typing import NamedTuple

from elastic_core.plugin import Option


class DoctorOptions(NamedTuple):
    """The values of the flags."""

    json: bool = False
    expect_store: bool = False
    peers: int = 0
    timeout: float = 10.0
    peers_timeout: float = 60.0


_DEFAULTS = DoctorOptions()
OPTIONS = (
    Option("json", bool, _DEFAULTS.json, "print JSON"),
    Option("expect_store", bool, _DEFAULTS.expect_store, "report an unreachable store as a fault"),
    Option(
        "peers",
        int,
        _DEFAULTS.peers,
        "number of doctors, including this one, that connect to each other and compare versions",
        least=0,
    ),
    Option("timeout", float, _DEFAULTS.timeout, "time limit for each check that may hang", "seconds", above=0),
    Option(
        "peers_timeout", float, _DEFAULTS.peers_timeout, "how long to wait for all doctors to join", "seconds", above=0
    ),
)
