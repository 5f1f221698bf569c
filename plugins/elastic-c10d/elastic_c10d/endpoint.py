"""Endpoints: `host[:port]`. The host is a name, an IPv4 address, or an IPv6 one with or without brackets."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from elastic_core.errors import ConfigurationError, Problem

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Endpoint:
    """Where nodes meet. `host` has no brackets."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is written so that it can only be this machine, whichever one reads it."""
        if self.host.lower() in ("localhost", "ip6-localhost"):
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback


def parse_endpoint(text: str, origin: str = "--rdzv-endpoint") -> Endpoint:
    """Read an endpoint; without a port it gets 29400. A bare `fe80::1` is a host, since brackets must set a port apart.

    Raises:
        ConfigurationError: it cannot be one; the problem names `origin`.
    """
    host, port = _split(text.strip(), origin)
    if not host or not _is_host(host):
        raise _wrong(origin, f"found {text!r}")
    return Endpoint(host, DEFAULT_PORT if port is None else _port(port, text, origin))


def _split(text: str, origin: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or _address(host) is None or ":" not in host or (rest and not rest.startswith(":")):
            raise _wrong(origin, f"found {text!r}; brackets hold an IPv6 address, as in [fe80::1]:29400")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        if _address(text) is None:
            raise _wrong(origin, f"found {text!r}, which has several colons and is no IPv6 address")
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(port: str, text: str, origin: str) -> int:
    if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return int(port)
    raise _wrong(origin, f"found {text!r}, whose port is none; ports are 1 to 65535")


def _is_host(host: str) -> bool:
    if any(character.isspace() or character in ",/@?#[]" for character in host):
        return False
    return len(host) <= 253 and host.isprintable()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _wrong(origin: str, found: str) -> ConfigurationError:
    return ConfigurationError(Problem(origin, f"expected one endpoint host[:port], {found}"))
