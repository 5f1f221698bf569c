"""The endpoint's options, as set with `--health-conf`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ConfigurationError, Problem, ip_address, keep_memory_private
from elastic_http_health.files import FromFiles, exposure
from elastic_http_health.tls import server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from elastic_core.plugin import Duration

ORIGIN = "--health-conf"
_LONGEST_TOKEN = 1024
_NAME = re.compile(r"[\w.*-]+")


@dataclass(frozen=True)
class Limits:
    """Limits on the endpoint's load, which protect the agent.

    Args:
        connections: maximum number of open connections; the next connection replaces the one that has been idle
            longest.
        waiting: maximum number of requests that wait for a change; the next such request is answered immediately.
        rate: average number of connections, with one request each, that are accepted per second. Further connections
            wait in the kernel.
        burst: number of connections that may be accepted immediately after an idle period.
        backlog: number of connections that may wait in the kernel. The default is small, so that a client waits little
            more than a second.
        head_bytes: approximate maximum size of a request's head.
        head_seconds: time limit for receiving the head.
        spare_reads: additional reads per second for heads that need more than two reads, shared by all connections. If
            none is left, a connection that needs one is closed.
        answer_seconds: time limit for the client to receive the response.
        rest_bytes: maximum number of bytes to read and discard after a request.
        rest_seconds: time limit for reading these bytes.
        wait_seconds: maximum time that a request may wait for a change.
    """

    connections: int = 64
    waiting: int = 16
    rate: float = 200.0
    burst: int = 50
    backlog: int = 256
    head_bytes: int = 8192
    head_seconds: Duration = 5.0
    spare_reads: float = 200.0
    answer_seconds: Duration = 10.0
    rest_bytes: int = 262_144
    rest_seconds: Duration = 0.5
    wait_seconds: Duration = 30.0


@dataclass(frozen=True)
class Options:
    """The endpoint's options.

    Args:
        host: the address or name on which to listen.
        allowed_hosts: names of this machine in addition to its host name, or patterns (`*.example`, `*`).
        token: the bearer token. With neither `token` nor `token_file`, no token is required.
        token_file: a bearer token that is read from a file. Used instead of `token`.
        tls: the TLS context (default: plain HTTP).
        secret_files: paths of files that no other user should be able to read.
    """

    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    token_file: FromFiles[str] | None = None
    tls: FromFiles[ssl.SSLContext] | None = None
    secret_files: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def bearer(self) -> str | None:
        """Return the token that requests must currently have, or None if no token is required."""
        return self.token_file.now() if self.token_file else self.token

    def exposed(self, elsewhere: str) -> Iterator[str]:
        """Yield warnings about data that other users may be able to read. Each warning includes a remedy.

        Args:
            elsewhere: the addresses that other machines can reach; empty if there are none.
        """
        if elsewhere and self.bearer() is None:
            yield (
                f"any client that can reach {elsewhere} may read names and addresses of nodes, and the output and "
                f"stack of a failed worker; to require a token, use {ORIGIN} token_file=PATH"
            )
        if self.token is not None and any(f"token={self.token}" in word for word in sys.orig_argv):
            yield f"other users can see the token in the process list; put it into a file: {ORIGIN} token_file=PATH"
        yield from filter(None, map(exposure, self.secret_files))


def read_options(values: Mapping[str, Any]) -> Options:
    """Create the endpoint's options from the typed values. If a secret is in a file, core dumps of this process are
    disabled. Raises one ConfigurationError that lists all problems."""
    problems: list[Problem] = []
    host = str(values.get("host") or "")
    if not host:
        problems.append(Problem(ORIGIN, "host must not be empty; the default is 127.0.0.1"))
    names = tuple((values.get("allowed_hosts") or "").lower().split())
    if wrong := [name for name in names if not (_NAME.fullmatch(name) or ip_address(name))]:
        words = f"expected allowed_hosts as names without scheme and port, separated by spaces, found {wrong[0]!r}"
        problems.append(Problem(ORIGIN, words))
    token, file = values.get("token"), values.get("token_file")
    token_file = None
    try:
        if token is not None and file is not None:
            raise ValueError("token and token_file are mutually exclusive; remove one")
        if file is not None:
            token_file = FromFiles([file], lambda: _token_in(file))
        elif token is not None:
            _checked(token)
    except ValueError as error:
        problems.append(Problem(ORIGIN, str(error)))
    cert, key = values.get("cert_file"), values.get("key_file")
    tls = None
    try:
        if key is not None and cert is None:
            raise ValueError("key_file requires cert_file; remove key_file for HTTP without TLS")
        if cert is not None:
            tls = FromFiles([file for file in (cert, key) if file], lambda: server_context(cert, key))
    except ValueError as error:
        problems.append(Problem(ORIGIN, str(error)))
    if problems:
        raise ConfigurationError(*problems)
    if secret_files := tuple(path for path in (file, key or cert) if path):
        keep_memory_private()
    limits = Limits(connections=values["connections"], rate=values["rate"])
    return Options(host, names, token, token_file, tls, secret_files, limits)


def _token_in(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            token = opened.read(_LONGEST_TOKEN + 2).decode("latin-1").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the token file {file!r}: {reason}") from error
    return _checked(token)


def _checked(token: str) -> str:
    if 1 <= len(token) <= _LONGEST_TOKEN and token.isascii() and token.isprintable():
        return token
    found = "is empty" if not token else "is longer" if len(token) > _LONGEST_TOKEN else "has other characters"
    raise ValueError(
        f"a token must have 1 to {_LONGEST_TOKEN} printable ASCII characters, but this one {found}; "
        "create one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
    )
