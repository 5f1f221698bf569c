"""Endpoints: `[scheme://]host[:port]`, several separated by commas. All problems of a list at once."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support.addresses import joined_host_port, split_host_port

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
        return joined_host_port(self.host, self.port)


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
    try:
        host, port = split_host_port(rest, DEFAULT_PORT, part_of=text)
    except ValueError as error:
        raise _wrong(origin, str(error)) from None
    return Endpoint(host, port, scheme)


def _without_scheme(text: str, origin: str) -> tuple[str, str]:
    before, separator, rest = text.partition("://")
    if not separator:
        return "", text
    if before.lower() not in _SCHEMES:
        raise _wrong(origin, f"found {text!r}, whose scheme is neither http nor https")
    return before.lower(), rest.removesuffix("/")


def _wrong(origin: str, found: str) -> ConfigurationError:
    return ConfigurationError(Problem(origin, f"expected endpoints host[:port][,host[:port]...], {found}"))
