"""Reads the client's endpoint and options, and reports all problems together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    ConfigurationError,
    Problem,
    is_loopback,
    joined_host_port,
    read_secret,
    split_host_port,
    type_options,
)
from elastic_etcd.client.channel import Security
from elastic_etcd.client.members import Login
from elastic_etcd.plugin import CONNECTION, LEASE_TTL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.plugin import Duration

DEFAULT_PORT = 2379
ORIGIN = "--rdzv-endpoint"

PASSWORD_ENV = "ELASTIC_ETCD_PASSWORD"
SHORTEST_TTL: Duration = 2.0  # etcd's minimum
_CERTIFICATES = ("ca_cert", "ssl_cert", "ssl_cert_key")
_PASSWORDS = ("password", "password_file", "password_env")

REMOVED: dict[str, str] = {}
"""Passwords by the environment variables that held them. Another job or round may need them again."""


@dataclass(frozen=True)
class Endpoint:
    """A member of the cluster. `host` has no brackets. `scheme` is http, https, or empty if the endpoint names none."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = ""

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return joined_host_port(self.host, self.port)


@dataclass(frozen=True)
class EtcdParameters:
    """How to connect to the cluster, and which keys to use there. All keys begin with `/<prefix>/`. A node's keys
    outlive its last heartbeat by `lease_ttl` seconds, which is at least 2 (default: the time that may pass without
    heartbeats)."""

    endpoints: tuple[Endpoint, ...]
    security: Security | None
    login: Login | None
    prefix: str
    read_timeout: Duration
    lease_ttl: Duration | None

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of every member."""
        return tuple(endpoint.address for endpoint in self.endpoints)


def read_parameters(
    endpoint: str,
    options: Mapping[str, Any],
    origin: str = "--rdzv-conf",
    endpoint_origin: str = ORIGIN,
    removed: dict[str, str] = REMOVED,
) -> EtcdParameters:
    """Read the endpoint and the options. Raises one ConfigurationError that lists all problems. The variable with the
    password is removed from this process's environment.

    Args:
        endpoint: one or more `[scheme://]host[:port]`, separated by commas.
        options: the values of the options in CONNECTION and LEASE_TTL, as strings or typed values. None and an empty
            string mean that the option is not set.
        origin, endpoint_origin: the source of the options and of the endpoint, for messages.
        removed: remembers the passwords from removed variables, by variable.
    """
    own = (*CONNECTION, LEASE_TTL)
    given = {option.name: value for option in own if (value := options.get(option.name)) != ""}
    typed, untyped = type_options(own, given, origin)
    reading = _Reading(typed, origin)
    endpoints: tuple[Endpoint, ...] = ()
    try:
        endpoints = parse_endpoints(endpoint, endpoint_origin)
    except ConfigurationError as error:
        reading.problems += error.problems
    security = reading.security(endpoints)
    login = reading.login(removed)
    if login is not None and security is None:
        reading.expect_nobody_listens(endpoints)
    prefix = reading.prefix()
    if reading.problems or untyped:
        raise ConfigurationError(*reading.problems, *untyped)
    return EtcdParameters(endpoints, security, login, prefix, typed["read_timeout"], typed["lease_ttl"])


def _password_in(variable: str, removed: dict[str, str]) -> str | None:
    """Return the value of the environment variable, even if an earlier call has removed it. It is removed so that no
    process that is started later inherits it."""
    if (found := os.environ.pop(variable, None)) is not None:
        removed[variable] = found
    return removed.get(variable)


class _Reading:
    """One pass over typed options. Each method records problems and continues with a harmless value."""

    def __init__(self, typed: Mapping[str, Any], origin: str) -> None:
        self.problems: list[Problem] = []
        self._given = typed.get  # returns None if an option is unset or invalid
        self._origin = origin

    def security(self, endpoints: tuple[Endpoint, ...]) -> Security | None:
        # A served etcd runs in another folder, and the program may change its folder before a certificate is renewed.
        ca_cert, cert, key = (path and str(Path(path).absolute()) for path in map(self._given, _CERTIFICATES))
        if (cert is None) != (key is None):
            alone, missing = ("ssl_cert", "ssl_cert_key") if cert else ("ssl_cert_key", "ssl_cert")
            self._wrong(missing, f"expected a certificate and its private key, found only {alone}; set both or neither")
        protocol = (self._given("protocol") or "").lower()
        if protocol not in ("", "http", "https"):
            self._wrong("protocol", f"expected http or https, found {protocol!r}")
            return None
        written = {endpoint.scheme for endpoint in endpoints} - {""}
        if protocol and written - {protocol}:
            self._wrong(
                "protocol", f"the endpoints use {written.pop()}, but the protocol is {protocol}; change one of them"
            )
        given = [name for name in _CERTIFICATES if self._given(name)]
        chosen = protocol or next(iter(written), "https" if given else "http")
        if chosen == "http" and given:
            self._wrong("protocol", f"{given[0]} requires https, but the protocol is http; change or remove one")
        return Security(ca_cert, cert, key) if chosen == "https" else None

    def login(self, removed: dict[str, str]) -> Login | None:
        user, written = self._given("user"), [name for name in _PASSWORDS if self._given(name)]
        variable = self._given("password_env") or PASSWORD_ENV
        held = _password_in(variable, removed)  # even without a user, because this removes the variable
        if user is None:
            if written:
                self._wrong("user", "a password requires a user")
            return None
        if len(written) > 1:
            self._wrong(written[1], f"{written[0]} is also set; remove one of them")
        password = self._given("password") or held
        if (path := self._given("password_file")) is not None:
            password = self._in_file(path)
        elif password is None:
            ways = f"set the variable {variable}, or name a file that contains the password (password_file)"
            self._wrong("password", f"the user {user!r} requires a password; {ways}")
        elif any("\ud800" <= it <= "\udfff" for it in password):
            self._wrong("password", "the password is not valid UTF-8")
        return None if password is None else Login(user, password)

    def _in_file(self, path: str) -> str:
        try:
            return read_secret(Path(path).expanduser()).decode()
        except UnicodeDecodeError:
            self._wrong("password_file", f"{path} is not valid UTF-8")
        except (ValueError, RuntimeError) as error:  # RuntimeError: an unknown home directory
            self._wrong("password_file", str(error))
        return ""

    def expect_nobody_listens(self, endpoints: Sequence[Endpoint]) -> None:
        """Allow a password to be sent in plain text only if it stays on this machine or if the user has allowed it.
        `localhost` is the only host name that guarantees that it stays here, because a name server could redirect any
        other name."""
        exposed = [endpoint.address for endpoint in endpoints if not is_loopback(endpoint.host)]
        if exposed and not self._given("insecure_password"):
            risk = f"the password would be sent to {', '.join(exposed)} in plain text, which would let others read it"
            ways = "use https (protocol, ca_cert), or insecure_password=true if something else encrypts the connection"
            self._wrong("insecure_password", f"{risk}; {ways}")

    def prefix(self) -> str:
        written = self._given("prefix", PREFIX)
        prefix: str = written.strip("/")
        if not prefix or not prefix.isprintable():
            self._wrong("prefix", f"expected a printable key prefix, such as elastic, found {written!r}")
        return prefix

    def _wrong(self, name: str, message: str) -> None:
        self.problems.append(Problem(f"{self._origin}: {name}", message))


def parse_endpoints(text: str, origin: str = ORIGIN) -> tuple[Endpoint, ...]:
    """Parse a list of endpoints, in order and without duplicates. The default port is 2379. Raises ConfigurationError
    if the list is empty, mixes http and https, or has invalid endpoints, all of which are reported."""
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
        problems.append(Problem(origin, f"expected endpoints with the same scheme, found http and https in {text!r}"))
    if problems:
        raise ConfigurationError(*problems)
    return tuple(found.values())


def _parsed(text: str, origin: str) -> Endpoint:
    before, separator, after = text.partition("://")
    scheme, rest = (before.lower(), after.removesuffix("/")) if separator else ("", text)
    if separator and scheme not in ("http", "https"):
        raise _wrong(origin, f"found the scheme {before!r}, which is neither http nor https")
    if "@" in rest:
        advice = "set user and password_file in --rdzv-conf"
        raise _wrong(origin, f"found one with a user, perhaps with a password, before an @; {advice}")
    try:
        return Endpoint(*split_host_port(rest, DEFAULT_PORT, part_of=text), scheme)
    except ValueError as error:
        raise _wrong(origin, str(error)) from None


def _wrong(origin: str, found: str) -> ConfigurationError:
    return ConfigurationError(Problem(origin, f"expected endpoints host[:port][,host[:port]...], {found}"))
