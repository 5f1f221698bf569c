"""From the endpoint and the options that users write to what a client is made of; all problems at once. Pure, but for
the password: it is read from a file or a variable, and the variable is taken out of the environment of this process, so
that nothing that is started from then on inherits it."""

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
from elastic_etcd.client.login import Login
from elastic_etcd.plugin import CONNECTION, LEASE_TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.plugin import Duration

DEFAULT_PORT = 2379
ORIGIN = "--rdzv-endpoint"
_SCHEMES = ("http", "https")
PREFIX = "elastic"
PASSWORD_ENV = "ELASTIC_ETCD_PASSWORD"
SHORTEST_TTL: Duration = 2.0
"""What etcd grants at least."""
_CERTIFICATES = ("ca_cert", "ssl_cert", "ssl_cert_key")
_PASSWORDS = ("password", "password_file", "password_env")

_taken: dict[str, str] = {}
"""Passwords that were in variables of this process. It may be asked to read them again, for another job or round."""


@dataclass(frozen=True)
class Endpoint:
    """A member of the cluster. `host` has no brackets; `scheme` is http, https, or empty where none was written."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = ""

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return joined_host_port(self.host, self.port)


@dataclass(frozen=True)
class EtcdParameters:
    """Where the cluster is, how to talk to it, and what is ours there.

    Args:
        endpoints: its members, at least one.
        security: connections are over TLS, with these certificates; None: in plain text.
        login: user and password; None: without.
        prefix: all keys begin with `/<prefix>/`; has no slash at its ends, and is never empty.
        read_timeout: for etcd to answer an operation, on whichever member, in seconds.
        lease_ttl: how long what belongs to a node outlives its last sign of life, in seconds, at least 2; None: as long
            as beats may be missing.
    """

    endpoints: tuple[Endpoint, ...]
    security: Security | None = None
    login: Login | None = None
    prefix: str = PREFIX
    read_timeout: Duration = 5.0
    lease_ttl: Duration | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of every member."""
        return tuple(endpoint.address for endpoint in self.endpoints)

    @property
    def places(self) -> list[tuple[str, int]]:
        """Host and port of every member."""
        return [(endpoint.host, endpoint.port) for endpoint in self.endpoints]


def read_parameters(
    endpoint: str,
    options: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    origin: str = "--rdzv-conf",
    endpoint_origin: str = ORIGIN,
) -> EtcdParameters:
    """Read what users wrote.

    Args:
        endpoint: `[scheme://]host[:port]`, several separated by commas.
        options: those of CONNECTION and LEASE_TTL, as text or typed; None and empty text mean unset. Others are not
            looked at.
        environment: where the password's variable is looked up; None: this process's, which has it no more afterwards.
        origin, endpoint_origin: where the options and the endpoint were written, for messages.

    Raises:
        ConfigurationError: with every problem there is.
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
    login = reading.login(_own_password if environment is None else environment.get)
    if login is not None and security is None:
        reading.expect_nobody_listens(endpoints)
    prefix = reading.prefix()
    if reading.problems or untyped:
        raise ConfigurationError(*reading.problems, *untyped)
    return EtcdParameters(endpoints, security, login, prefix, typed["read_timeout"], typed["lease_ttl"])


def _own_password(variable: str) -> str | None:
    """What this process's variable holds, or held before it was taken away."""
    if (found := os.environ.pop(variable, None)) is not None:
        _taken[variable] = found
    return _taken.get(variable)


class _Reading:
    """One reading of typed options. Each method notes what is wrong and goes on with something harmless."""

    def __init__(self, typed: Mapping[str, Any], origin: str) -> None:
        self.problems: list[Problem] = []
        self._given = typed.get  # None if an option is unset, or was no value of its type
        self._origin = origin

    def security(self, endpoints: tuple[Endpoint, ...]) -> Security | None:
        ca_cert, cert, key = map(self._given, _CERTIFICATES)
        if (cert is None) != (key is None):
            alone, missing = ("ssl_cert", "ssl_cert_key") if cert else ("ssl_cert_key", "ssl_cert")
            self._wrong(missing, f"expected a certificate and its private key, found {alone} alone; give both or none")
        protocol = (self._given("protocol") or "").lower()
        if protocol not in ("", "http", "https"):
            self._wrong("protocol", f"expected http or https, found {protocol!r}")
            return None
        written = {endpoint.scheme for endpoint in endpoints} - {""}
        if protocol and written - {protocol}:
            self._wrong("protocol", f"expected what the endpoints say, {written.pop()}, found {protocol}; correct one")
        given = [name for name in _CERTIFICATES if self._given(name)]
        chosen = protocol or next(iter(written), "https" if given else "http")
        if chosen == "http" and given:
            self._wrong("protocol", f"expected https, since {given[0]} is given, found http; leave one of them out")
        return Security(ca_cert, cert, key) if chosen == "https" else None

    def login(self, variables: Callable[[str], str | None]) -> Login | None:
        user, written = self._given("user"), [name for name in _PASSWORDS if self._given(name)]
        variable = self._given("password_env") or PASSWORD_ENV
        held = variables(variable)  # in any case: it is nothing for workers, whose job may not need it either
        if user is None:
            if written:
                self._wrong("user", "expected a user to the password, found none")
            return None
        if len(written) > 1:
            self._wrong(written[1], f"expected the password in one place, found {written[0]} too; leave one out")
        password = self._given("password") or held
        if (path := self._given("password_file")) is not None:
            password = self._in_file(path)
        elif password is None:
            where = f"set the variable {variable}, or name a file that holds it (password_file)"
            self._wrong("password", f"expected the password of the user {user!r}, found none; {where}")
        elif any("\ud800" <= it <= "\udfff" for it in password):
            self._wrong("password", "expected text, found bytes in it that are none in UTF-8")
        return None if password is None else Login(user, password)

    def _in_file(self, path: str) -> str:
        try:
            return read_secret(Path(path).expanduser()).decode()
        except UnicodeDecodeError:
            self._wrong("password_file", f"expected text in {path}, found bytes that are none in UTF-8")
        except (ValueError, RuntimeError) as error:  # a home that nobody knows
            self._wrong("password_file", str(error))
        return ""

    def expect_nobody_listens(self, endpoints: Sequence[Endpoint]) -> None:
        """The password goes in plain text: only where it stays on this machine, or somebody says that this is meant. Of
        names `localhost` alone stays: who answers for names could lead others away."""
        exposed = [endpoint.address for endpoint in endpoints if not is_loopback(endpoint.host)]
        if exposed and not self._given("insecure_password"):
            self._wrong(
                "insecure_password",
                f"expected TLS on the way to {', '.join(exposed)}, found plain text: who listens on the network would "
                "read the password, and could do in etcd all that its user may; use https (protocol, ca_cert), or say "
                "insecure_password=true if something else encrypts what is sent there",
            )

    def prefix(self) -> str:
        written = self._given("prefix", PREFIX)
        prefix: str = written.strip("/")
        if not prefix or not prefix.isprintable():
            self._wrong("prefix", f"expected what keys are to begin with, such as elastic, found {written!r}")
        return prefix

    def _wrong(self, name: str, message: str) -> None:
        self.problems.append(Problem(f"{self._origin}: {name}", message))


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
    before, separator, after = text.partition("://")
    scheme, rest = (before.lower(), after.removesuffix("/")) if separator else ("", text)
    if separator and scheme not in _SCHEMES:
        raise _wrong(origin, f"found {before!r} as the scheme of one, which is neither http nor https")
    if "@" in rest:
        advice = "give them in --rdzv-conf as user and password_file"
        raise _wrong(origin, f"found one with a user, perhaps with a password, before an @; {advice}")
    try:
        return Endpoint(*split_host_port(rest, DEFAULT_PORT, part_of=text), scheme)
    except ValueError as error:
        raise _wrong(origin, str(error)) from None


def _wrong(origin: str, found: str) -> ConfigurationError:
    return ConfigurationError(Problem(origin, f"expected endpoints host[:port][,host[:port]...], {found}"))
