"""Endpoints: `host[:port]`, or several with commas between them. A host is a name, an IPv4 address, or an IPv6 one with
or without brackets."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.plugin import ConfigurationError, Problem, is_loopback, joined_host_port, split_host_port

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Endpoint:
    """Where nodes meet.

    Args:
        host: without brackets.
        rest: where else the store may be; a new one begins at the first.
        is_open: other machines reach it under another name, although the host is loopback.
    """

    host: str
    port: int = DEFAULT_PORT
    rest: tuple[Endpoint, ...] = ()
    is_open: bool = False

    def __str__(self) -> str:
        return ",".join(joined_host_port(one.host, one.port) for one in self.each)

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """All of them, the first one first, each by itself."""
        return (Endpoint(self.host, self.port), *self.rest)

    @property
    def is_loopback(self) -> bool:
        """Whether all hosts are written so that they can only be this machine, whichever one reads them."""
        return not self.is_open and all(is_loopback(one.host) for one in self.each)


def parse_endpoint(
    text: str, origin: str = "--rdzv-endpoint", least_port: int = 1, default_port: int = DEFAULT_PORT
) -> Endpoint:
    """Read an endpoint; without a port it gets the default. A bare `fe80::1` is a host, since brackets must set a port
    apart. With `least_port=0` the port may be 0, for any free one.

    Raises:
        ConfigurationError: it cannot be one; the problem names `origin`.
    """
    try:
        return Endpoint(*split_host_port(text.strip(), default_port, text, least_port))
    except ValueError as error:
        problem = Problem(origin, f"expected one endpoint host[:port], {error}")
        raise ConfigurationError(problem) from None


def parse_endpoints(text: str, least_port: int = 1) -> Endpoint:
    """Read one endpoint or several, with commas between them. Raises ConfigurationError if one of them cannot be."""
    first, *rest = (parse_endpoint(part, least_port=least_port) for part in text.split(","))
    return Endpoint(first.host, first.port, tuple(dict.fromkeys(one for one in rest if one != first)))
