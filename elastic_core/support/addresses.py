"""Addresses: `host:port` as people write it, where brackets set an IPv6 address apart from its port; and the address
under which others reach this machine."""

from __future__ import annotations

import ipaddress
import socket

_NOWHERE = ("192.0.2.1", 9)  # an address for documentation; nothing is sent there


def joined_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address; `host` has none."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str, default_port: int, part_of: str = "") -> tuple[str, int]:
    """Read `host[:port]`. The host is a name, an IPv4 address, or an IPv6 one, and is returned without brackets. A bare
    `fe80::1` is a host, since brackets must set a port apart.

    Args:
        text: without white space around it.
        default_port: where none is written.
        part_of: what the message is to quote, where `text` is only a part of what the user wrote.

    Raises:
        ValueError: it cannot be one. The message is the end of a sentence: `found 'a:0', whose port is none; ...`.
    """
    written = part_of or text
    host, port = _split(text, default_port, written)
    if not host or not _is_host(host):
        raise ValueError(f"found {written!r}")
    return host, default_port if port is None else _port(port, written)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is; None if it is a name. One of IPv4 that is mapped into IPv6 is the one of IPv4: it
    leads to the same place."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _split(text: str, default_port: int, written: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or ip_address(host) is None or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError(f"found {written!r}; brackets hold an IPv6 address, as in [fe80::1]:{default_port}")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        if ip_address(text) is None:
            raise ValueError(f"found {written!r}, which has several colons and is no IPv6 address")
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(port: str, written: str) -> int:
    digits = port.lstrip("0")
    # Its length first: Python refuses to convert thousands of digits.
    if port.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) < 65536:
        return int(digits)
    raise ValueError(f"found {written!r}, whose port is none; ports are 1 to 65535")


def _is_host(host: str) -> bool:
    if any(character.isspace() or character in ",/@?#[]" for character in host):
        return False
    return len(host) <= 253 and host.isprintable()


def own_address_towards(host: str, port: int) -> str | None:
    """The address that this machine's packets for `host` carry: other machines that reach `host` reach us there.

    Nothing is sent to find out, but a name is looked up.

    Returns:
        The address as a number; None if nobody knows the name, or there is no route.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(where)  # a datagram socket's: it only chooses the route
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError):  # the latter for a name that cannot be one
        return None


def reached_at(host: str = "", port: int = 0) -> str:
    """The address by which others that reach `host` reach this machine; without one, by which the world would. The
    name of this machine where that cannot be told."""
    return own_address_towards(*((host, port) if host else _NOWHERE)) or socket.gethostname()
