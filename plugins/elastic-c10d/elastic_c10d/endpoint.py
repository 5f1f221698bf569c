"""Endpoints: `host[:port]`. The host is a name, an IPv4 address, or an IPv6 one with or without brackets."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support.addresses import is_loopback, joined_host_port, split_host_port

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Endpoint:
    """Where nodes meet. `host` has no brackets."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return joined_host_port(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether the host is written so that it can only be this machine, whichever one reads it."""
        return is_loopback(self.host)


def parse_endpoint(text: str, origin: str = "--rdzv-endpoint", least_port: int = 1) -> Endpoint:
    """Read an endpoint; without a port it gets 29400. A bare `fe80::1` is a host, since brackets must set a port apart.
    With `least_port=0` the port may be 0, for any free one.

    Raises:
        ConfigurationError: it cannot be one; the problem names `origin`.
    """
    try:
        return Endpoint(*split_host_port(text.strip(), DEFAULT_PORT, text, least_port))
    except ValueError as error:
        problem = Problem(origin, f"expected one endpoint host[:port], {error}")
        raise ConfigurationError(problem) from None
