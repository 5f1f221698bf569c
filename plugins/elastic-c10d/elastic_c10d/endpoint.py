"""Parses endpoints: one `host[:port]`, or several separated by commas. A host is a name, an IPv4 address, or an IPv6
address with or without brackets."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.plugin import ConfigurationError, Problem, is_loopback, joined_host_port, split_host_port

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Endpoint:
    """The address of the rendezvous store.

    Args:
        host: the first host, without brackets.
        rest: other endpoints that may host the store. A new store starts at `host`.
        is_open: whether `host` is a loopback name or address, but other machines reach the store under another name.
    """

    host: str
    port: int = DEFAULT_PORT
    rest: tuple[Endpoint, ...] = ()
    is_open: bool = False

    def __str__(self) -> str:
        return ",".join(joined_host_port(one.host, one.port) for one in self.each)

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """All addresses as separate endpoints, in order."""
        return (Endpoint(self.host, self.port), *self.rest)

    @property
    def is_loopback(self) -> bool:
        """Whether all hosts are loopback names or addresses, with which each machine reaches only itself. False if
        `is_open` is True."""
        return not self.is_open and all(is_loopback(one.host) for one in self.each)


def parse_endpoint(
    text: str, origin: str = "--rdzv-endpoint", least_port: int = 1, default_port: int = DEFAULT_PORT
) -> Endpoint:
    """Parse one endpoint. A port after an IPv6 address requires brackets, so `fe80::1` is a host without a port. If
    `least_port` is 0, the port may be 0, which means any free port.

    Raises:
        ConfigurationError: the endpoint is invalid; the problem names `origin`.
    """
    try:
        return Endpoint(*split_host_port(text.strip(), default_port, text, least_port))
    except ValueError as error:
        problem = Problem(origin, f"expected one endpoint host[:port], {error}")
        raise ConfigurationError(problem) from None


def parse_endpoints(text: str, least_port: int = 1) -> Endpoint:
    """Parse one endpoint, or several separated by commas. Raises ConfigurationError if any of them is invalid."""
    first, *rest = (parse_endpoint(part, least_port=least_port) for part in text.split(","))
    return Endpoint(first.host, first.port, tuple(dict.fromkeys(one for one in rest if one != first)))
