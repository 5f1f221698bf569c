"""Addresses and sockets: parses and formats `host:port` as users write it, with brackets around an IPv6 address,
determines the address at which other machines reach this one, reserves ports, and checks whether other machines are
reachable."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock, later
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from elastic_core.clock import Duration


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
        ConfigurationError: an endpoint is not a host with a port.
    """
    parts = [part.strip() for part in endpoint.split(",")]
    urls = [part.partition("://")[2].partition("/")[0].rpartition("@")[2] for part in parts]
    try:
        return [split_host_port(url or part, default_port, endpoint) for url, part in zip(urls, parts, strict=True)]
    except ValueError as error:
        raise ConfigurationError(Problem("--rdzv-endpoint", f"expected HOST[:PORT],..., {error}")) from error


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
    except ConfigurationError:
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


REFUSED = "connection refused"
_RESET = "connection reset"
_PLAIN = {
    errno.ECONNREFUSED: REFUSED,
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.EADDRNOTAVAIL: "not an address of this machine",
    errno.EADDRINUSE: "already in use",
    errno.EACCES: "not allowed",
    errno.ETIMEDOUT: "timed out",
    errno.ECONNRESET: _RESET,
}
_ANSWERS = ("", REFUSED, _RESET)  # results of `try_connect` that show that the machine is up


def error_text(error: OSError) -> str:
    """Describe a socket's error in plain words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return _PLAIN.get(error.errno or 0) or error.strerror or str(error)


@dataclass(frozen=True)
class Address:
    """An address in the form that sockets use."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])

    @property
    def scoped_host(self) -> str:
        """The host, with the interface if the address is link-local."""
        scope = self.sockaddr[3] if len(self.sockaddr) > 3 else 0
        return f"{self.host}%{scope}" if scope and "%" not in self.host else self.host

    @property
    def port(self) -> int:
        return int(self.sockaddr[1])

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return joined_host_port(self.host, self.port)


def is_local_address(address: Address) -> bool:
    """Return whether the address belongs to this machine. If so, a socket can be bound to it."""
    return not cannot_bind(address.family, (address.host, 0, *address.sockaddr[2:]))


def cannot_bind(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> str:
    """Return why a server cannot listen on the address now, or an empty string if it can."""
    try:
        with bound_socket(family, sockaddr) as sock:
            sock.listen(1)  # two sockets may be bound to the address, but only one may listen
    except OSError as error:
        return error_text(error)
    return ""


def resolve_host(host: str, port: int) -> list[Address]:
    """Return all addresses of a host, in the system's order of preference. An IPv4 address mapped into IPv6, as found
    in some /etc/hosts files, becomes a plain IPv4 address. Raises socket.gaierror if the name is unknown for now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, f"not a host name: {error}") from error
    return list(dict.fromkeys(_address(family, tuple(sockaddr)) for family, _, _, _, sockaddr in found))


def _address(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> Address:
    host = _unmapped(str(sockaddr[0]))
    return Address(family, sockaddr) if host == sockaddr[0] else Address(socket.AF_INET, (host, sockaddr[1]))


def _unmapped(host: str) -> str:
    return host.removeprefix("::ffff:") if "." in host else host


def try_connect(address: Address, timeout: Duration) -> tuple[str, str]:
    """Connect to the address, and close the connection again. Returns the error in plain words, which is empty if a
    server is listening, and the connection's local address, at which other machines reach this one."""
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(address.sockaddr)
            return "", _unmapped(str(sock.getsockname()[0]))
    except OSError as error:
        return error_text(error), ""


def unreachable(
    targets: Mapping[str, tuple[str, int]],
    seconds: Duration,
    resolve: Callable[[str, int], list[Address]] = resolve_host,
) -> set[str]:
    """Return the names of the targets that do not answer within `seconds`. A refused connection is also an answer. All
    targets are tried at the same time. `targets` maps each name to a host and a port."""
    clock = SystemClock()
    until = later(clock.now(), seconds)

    def answers(host: str, port: int) -> bool:
        try:
            return try_connect(resolve(host, port)[0], max(0.001, until - clock.now()))[0] in _ANSWERS
        except (OSError, OverflowError):  # OverflowError: the port is out of range
            return False

    calls = {name: BackgroundCall(partial(answers, *target), "elastic probe") for name, target in targets.items()}
    return {name for name, call in calls.items() if not (call.wait(until - clock.now()) and call.result())}


def bound_socket(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> socket.socket:
    """Return a socket that is bound to the address but does not listen. `::` means all addresses of both IPv4 and IPv6.
    Raises OSError, or OverflowError if the port is out of range."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(sockaddr[0] != "::"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(sockaddr)
    except (OSError, OverflowError):
        sock.close()
        raise
    return sock


def bound_everywhere(port: int) -> socket.socket:
    """Return a socket that is bound to the port on all addresses (IPv4 and IPv6 if possible) but does not listen."""
    try:
        return bound_socket(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
    return bound_socket(socket.AF_INET, ("0.0.0.0", port))


def bound_at(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port but does not listen. If `host` is one of this machine's addresses, the
    socket is bound to it. Otherwise, it is bound on all addresses, because a name may have other ones elsewhere."""
    if (own := _own_address(host, port)) is not None:
        with contextlib.suppress(OSError):  # the address may be a gateway's
            return bound_socket(own.family, own.sockaddr)
    return bound_everywhere(port)


def _own_address(host: str, port: int = 0) -> Address | None:
    """Return `host` as an address, or None if `host` is a name other than one for the loopback address."""
    if (ip_address(host) is None or "%" in host) and not is_loopback(host):
        return None
    with contextlib.suppress(OSError):
        return min(resolve_host(host, port), key=lambda address: address.family != socket.AF_INET)
    return None


def unbound() -> socket.socket | None:
    """Return a socket that `bind_at` can bind later, with support for both IPv4 and IPv6 if possible, or None if no
    socket can be created."""
    with contextlib.suppress(OSError):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return sock
    with contextlib.suppress(OSError):
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    return None


def bind_at(sock: socket.socket, host: str) -> None:
    """Bind a socket from `unbound` to any free port, at the address that `bound_at` would use. Raises OSError on
    failure."""
    both = sock.family == socket.AF_INET6
    if (own := _own_address(host)) is not None:
        mapped = both and own.family == socket.AF_INET
        with contextlib.suppress(OSError):
            return sock.bind((f"::ffff:{own.host}", 0) if mapped else own.sockaddr)
    return sock.bind(("::" if both else "0.0.0.0", 0))


def keep_open(sock: socket.socket, seconds: int) -> None:
    """Make the kernel send keepalive packets after this many idle seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)


class PortReservation:
    """Holds a TCP port until `release`, without listening.

    The kernel assigns the port neither to other programs that ask for any free port nor to outgoing connections. A
    server that also sets SO_REUSEADDR, such as torch's TCPStore, can still bind the port and listen on it. Two
    reservations of the same port do not conflict. Only the second server that tries to listen on it gets an error.

    Args:
        port: the port to reserve; 0 for any free port.
        host: the address on which to reserve the port (see `bound_at`). If empty, the port is reserved on all
            addresses, because torch's servers listen on all of them.

    Raises:
        ConfigurationError: the port is in use or not allowed.
    """

    def __init__(self, port: int = 0, host: str = "") -> None:
        try:
            self._socket = bound_at(host, port)
        except OverflowError as error:
            raise _unavailable(port, "ports range from 0 to 65535") from error
        except OSError as error:
            raise _unavailable(port, error.strerror) from error
        self.port: int = self._socket.getsockname()[1]

    def listen(self, backlog: int) -> socket.socket:
        """Listen on the port, and return the socket for a server. Raises ConfigurationError if another program is
        already listening on it."""
        try:
            self._socket.listen(backlog)
        except OSError as error:
            raise _unavailable(self.port, error.strerror) from error
        return self._socket

    def release(self) -> None:
        """Release the port. Idempotent."""
        self._socket.close()


def _unavailable(port: int, why: str | None) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "--master-port",
            f"the workers' store cannot use port {port}: {why}; "
            "stop the program that is listening on the port (see ss -ltnp), choose another port, or omit the flag",
        )
    )
