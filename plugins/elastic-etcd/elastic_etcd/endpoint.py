"""Endpoints: `[scheme://]host[:port]`, several separated by commas. All problems of a list at once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from elastic_core.errors import ConfigurationError, Problem

DEFAULT_PORT = 2379
ORIGIN = "--rdzv-endpoint"
_SCHEMES = ("http", "https")


@dataclass(frozen=True)
class Endpoint:
    """A member of the cluster. `host` has no brackets; `scheme` is http, https, or empty where none was written."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = ""

    def __str__(self) -> str:
        prefix = f"{self.scheme}://" if self.scheme else ""
        return prefix + self.address

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str, origin: str = ORIGIN) -> tuple[Endpoint, ...]:
    """Read a list of endpoints, in its order; without a port it is 2379. What is listed twice counts once.

    Raises:
        ConfigurationError: there is none, or one cannot be an endpoint (all those are told), or some are http and
            others https.
    """
    problems: list[Problem] = []
    found: dict[str, Endpoint] = {}
    for part in text.split(","):
        try:
            endpoint = _parsed(part.strip(), origin)
        except ConfigurationError as error:
            problems += error.problems
        else:
            found.setdefault(endpoint.address, endpoint)
    schemes = sorted({endpoint.scheme for endpoint in found.values() if endpoint.scheme})
    if len(schemes) > 1:
        problems.append(Problem(origin, f"expected endpoints of one scheme, found http and https in {text!r}"))
    if problems:
        raise ConfigurationError(*problems)
    return tuple(found.values())


def _parsed(text: str, origin: str) -> Endpoint:
    scheme, rest = _without_scheme(text, origin)
    host, port = _split(rest, text, origin)
    if not host or not _is_host(host):
        raise _wrong(origin, f"found {text!r}")
    return Endpoint(host, DEFAULT_PORT if port is None else _port(port, text, origin), scheme)


def _without_scheme(text: str, origin: str) -> tuple[str, str]:
    before, separator, rest = text.partition("://")
    if not separator:
        return "", text
    if before.lower() not in _SCHEMES:
        raise _wrong(origin, f"found {text!r}, whose scheme is neither http nor https")
    return before.lower(), rest.removesuffix("/")


def _split(rest: str, text: str, origin: str) -> tuple[str, str | None]:
    if rest.startswith("["):
        host, closed, after = rest[1:].partition("]")
        if not closed or _address(host) is None or ":" not in host or (after and not after.startswith(":")):
            raise _wrong(origin, f"found {text!r}; brackets hold an IPv6 address, as in [fe80::1]:{DEFAULT_PORT}")
        return host, after[1:] if after else None
    if rest.count(":") > 1:
        if _address(rest) is None:
            raise _wrong(origin, f"found {text!r}, which has several colons and is no IPv6 address")
        return rest, None
    host, colon, port = rest.partition(":")
    return host, port if colon else None


def _port(port: str, text: str, origin: str) -> int:
    if port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536:
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
    return ConfigurationError(Problem(origin, f"expected endpoints host[:port][,host[:port]...], {found}"))
