"""A port that is really ours: bound and held, not probed and hoped for."""

from __future__ import annotations

import errno
import socket

from elastic_core.errors import ConfigurationError, Problem


class PortReservation:
    """Holds a TCP port on all addresses until `release`, without listening.

    The socket is bound with SO_REUSEADDR and never listens. So the kernel gives the port to nobody else who
    asks for any port, nor to an outgoing connection, while a server that sets SO_REUSEADDR too, as torch's
    TCPStore does, can bind and listen on it. For the same reason two reservations of one wanted port do not see
    each other; whoever listens second finds out.

    Args:
        port: the port wanted, 0 for any free one.

    Raises:
        ConfigurationError: the wanted port is busy or not allowed.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of the port. Idempotent."""
        self._socket.close()


def _bound(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OverflowError as error:
        raise _unavailable(port, "ports are 0 to 65535") from error
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise _unavailable(port, error.strerror) from error
    try:
        return _bind(socket.AF_INET, "0.0.0.0", port)  # a machine without IPv6
    except OSError as error:
        raise _unavailable(port, error.strerror) from error


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def _unavailable(port: int, why: str | None) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "--master-port",
            f"expected a free port for the workers' store, found that {port} cannot be bound: {why}; "
            "end what listens there (ss -ltnp shows it), choose another, or leave the flag out to get a free one",
        )
    )
