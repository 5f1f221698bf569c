"""Parses and formats `host:port` as users write it, with brackets around an IPv6 address. Also determines the address
at which other machines reach this one."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOWHERE = ("192.0.2.1", 9)  # an address that is reserved for documentation; nothing is sent to it


def joined_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address. `host` itself has no brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str, default_port: int, part_of: str = "", least: int = 1) -> tuple[str, int]:
    """Parse `host[:port]`, and return the host without brackets. The host is a name, an IPv4 address or an IPv6
    address. A bare `fe80::1` is a host, because a port after an IPv6 address requires brackets.

    Args:
        text: the text, without surrounding white space.
        default_port: used if `text` has no port.
        part_of: the user's whole input, for the message, if `text` is only a part of the input.
        least: the lowest valid port; use 0 if port 0 means any free port.

    Raises:
        ValueError: `text` is not a host with a port. The message is a clause: `found 'a:0', whose port is ...`.
    """
    written = part_of or text
    host, port = _split(text, default_port, written)
    if not host or not _is_host(host):
        raise ValueError(f"found {written!r}")
    return host, default_port if port is None else _port(port, written, least)


def hosts_of(endpoint: str, default_port: int) -> list[tuple[str, int]]:
    """Return the host and port of each endpoint or URL in a comma-separated list. An endpoint has the form
    `[scheme://[user@]]host[:port][/path]`.

    Raises:
        ValueError: an endpoint is not a host with a port.
    """
    parts = [part.strip() for part in endpoint.split(",")]
    urls = [part.partition("://")[2].partition("/")[0].rpartition("@")[2] for part in parts]
    return [split_host_port(url or part, default_port, endpoint) for url, part in zip(urls, parts, strict=True)]


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or a usual name for one, such as `localhost`."""
    address = ip_address(host.partition("%")[0])
    return host.lower() in ("localhost", "ip6-localhost") or (address is not None and address.is_loopback)


def is_loopback_address(host: str) -> bool:
    """Return whether the host is a loopback address, as opposed to a name such as `localhost`."""
    return is_loopback(host) and ip_address(host.partition("%")[0]) is not None


def means_this_machine(host: str) -> bool:
    """Return whether a client that connects to the host reaches its own machine. This is the case for a loopback host
    and for the unspecified address (0.0.0.0 or `::`)."""
    address = ip_address(host.partition("%")[0])
    return is_loopback(host) or (address is not None and address.is_unspecified)


def is_remote(endpoint: str) -> bool:
    """Return whether the endpoint names any host other than a loopback address. A name such as `localhost` is
    considered remote. A path is not."""
    if "/" in endpoint and "://" not in endpoint:
        return False
    try:
        return any(not is_loopback_address(host) for host, _ in hosts_of(endpoint, 1))
    except ValueError:
        return False


def without_brackets(host: str) -> str:
    """Return an IPv6 address without its brackets, and any other host unchanged."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return `host` as an address, or None if `host` is a name. An IPv4 address mapped into IPv6 becomes a plain IPv4
    address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _split(text: str, default_port: int, written: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or ip_address(host) is None or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError(f"found {written!r}; brackets are for an IPv6 address, as in [fe80::1]:{default_port}")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        if ip_address(text) is None:
            raise ValueError(f"found {written!r}, which has several colons but is not an IPv6 address")
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(port: str, written: str, least: int) -> int:
    digits = port.lstrip("0") or "0"
    # The length is checked first, because Python refuses to convert thousands of digits.
    if port.isascii() and port.isdigit() and len(digits) <= 5 and least <= int(digits) < 65536:
        return int(digits)
    raise ValueError(f"found {written!r}, whose port is not a number from {least} to 65535")


def _is_host(host: str) -> bool:
    if any(character.isspace() or character in ",/@?#[]" for character in host):
        return False
    return len(host) <= 253 and host.isprintable()


def own_address_towards(host: str, port: int) -> str | None:
    """Return this machine's numeric source address for packets to `host`, or None if the name is unknown or there is no
    route. No packets are sent, except to resolve a name."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(where)  # for a datagram socket, this only selects the route
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError):  # UnicodeError: the name cannot be a host name
        return None


def address_towards(places: Iterable[tuple[str, int]] = ()) -> str | None:
    """Return this machine's address on the route to the first of `places` that may be on another machine or, if there
    is none, on the default route. Returns None if there is no route."""
    for host, port in (*places, _NOWHERE):
        own = own_address_towards(host, port)
        if own and not (is_loopback(own) and means_this_machine(host)):
            return seen_from_outside(own, host)
    return None


def reached_at(places: Iterable[tuple[str, int]] = ()) -> str:
    """Return the result of `address_towards`. If there is no route, return this machine's host name, or 127.0.0.1 if
    that name cannot be resolved."""
    own, name = address_towards(places), socket.gethostname()
    return own or (name if own_address_towards(name, _NOWHERE[1]) else "127.0.0.1")


def seen_from_outside(own: str, host: str) -> str:
    """Return the address at which other machines reach this end of a connection to `host`. This is `own`, the
    connection's local address, or `host` itself on the machine with that name, which often resolves to 127.0.1.1."""
    return host if is_loopback(own) and not means_this_machine(host) else own
