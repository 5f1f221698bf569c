"""What `--health-conf` says."""

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
    """How much the world may ask of the endpoint, so that it cannot hurt the agent. All times in seconds.

    Args:
        connections: open at a time; one more takes the place of the one that has been idle for longest.
        waiting: of them, those that wait for a change; one more is answered at once.
        rate: connections accepted per second, on average; each brings one request. More wait in the kernel.
        burst: accepted at once after a quiet time.
        backlog: connections that wait in the kernel. Few: a client behind so many waits little longer than a second.
        head_bytes: of a request's head, about.
        head_seconds: for all of it.
        spare_reads: per second, for heads that come in more than two pieces, of all connections together; a connection
            that would need one more is closed.
        answer_seconds: for the client to take the answer.
        rest_bytes: read, and thrown away, of what a client sends behind its request.
        rest_seconds: for all of that.
        wait_seconds: the longest that a request may ask to wait for a change.
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
    """Where to answer, whom, and how much of it.

    Args:
        host: an address, or a name of some.
        allowed_hosts: names of this machine besides its host name, or patterns of them (`*.example`, `*`).
        token: None, without `token_file` either: everybody may see everything.
        token_file: the token that is asked for now, in place of `token`.
        tls: of connections; None: they are without.
        secret_files: paths of what nobody else may read.
    """

    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    token_file: FromFiles[str] | None = None
    tls: FromFiles[ssl.SSLContext] | None = None
    secret_files: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def bearer(self) -> str | None:
        """The token that requests must have now."""
        return self.token_file.now() if self.token_file else self.token

    def exposed(self, elsewhere: str) -> Iterator[str]:
        """What others may read that they perhaps should not, and what to do about it.

        Args:
            elsewhere: the addresses that others reach; empty if there are none.
        """
        if elsewhere and self.bearer() is None:
            yield (
                f"who reaches {elsewhere} may read names and addresses of nodes, and the last lines and the stack of a "
                f"failed worker; {ORIGIN} token_file=PATH asks for a token"
            )
        if self.token is not None and any(f"token={self.token}" in word for word in sys.orig_argv):
            yield f"other users see the token in the list of processes; put it into a file, {ORIGIN} token_file=PATH"
        yield from filter(None, map(exposure, self.secret_files))


def read_options(values: Mapping[str, Any]) -> Options:
    """The options, typed, as the agent gives them. With a secret in a file, this process leaves no core dump from then
    on. Raises ConfigurationError with everything that is wrong."""
    problems: list[Problem] = []
    host = str(values.get("host") or "")
    if not host:
        problems.append(Problem(ORIGIN, "expected an address or a name as host, found nothing; 127.0.0.1 is usual"))
    names = tuple((values.get("allowed_hosts") or "").lower().split())
    if wrong := [name for name in names if not (_NAME.fullmatch(name) or ip_address(name))]:
        words = f"expected as allowed_hosts names without scheme and port, with blanks between them, found {wrong[0]!r}"
        problems.append(Problem(ORIGIN, words))
    token, file = values.get("token"), values.get("token_file")
    token_file = None
    try:
        if token is not None and file is not None:
            raise ValueError("expected token or token_file, found both; leave one out")
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
            raise ValueError("expected cert_file beside key_file, found none; leave key_file out for HTTP without TLS")
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
        raise ValueError(f"expected the token in the file {file!r}, found that it cannot be read: {reason}") from error
    return _checked(token)


def _checked(token: str) -> str:
    if 1 <= len(token) <= _LONGEST_TOKEN and token.isascii() and token.isprintable():
        return token
    found = "nothing" if not token else "more" if len(token) > _LONGEST_TOKEN else "other characters in it"
    raise ValueError(
        f"expected a token of 1 to {_LONGEST_TOKEN} printable ASCII characters, found {found}; "
        "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
    )
