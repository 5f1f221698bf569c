"""The address under which others reach this machine."""

from __future__ import annotations

import socket


def own_address_towards(host: str, port: int) -> str | None:
    """The address that this machine's packets for `host` carry: whoever else reaches `host` reaches us there.

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
