"""What `--health-conf` says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError, Problem
from elastic_http_health.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

ORIGIN = "--health-conf"
_LONGEST_TOKEN = 1024


@dataclass(frozen=True)
class Options:
    """Where to answer, whom, and how much of it.

    Args:
        host: an address, or a name of some.
        token: None: everybody may see everything.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)


def read_options(values: Mapping[str, Any]) -> Options:
    """The options, typed, as the agent gives them. Raises ConfigurationError with everything that is wrong."""
    problems: list[Problem] = []
    host = str(values.get("host") or "")
    if not host:
        problems.append(Problem(ORIGIN, "expected an address or a name as host, found nothing; 127.0.0.1 is usual"))
    token = _token(values.get("token"), values.get("token_file"), problems)
    limits = replace(
        Limits(),
        connections=_least(values, "connections", 4, Limits.connections, problems),
        rate=_least(values, "rate", 1, Limits.rate, problems),
    )
    if problems:
        raise ConfigurationError(*problems)
    return Options(host, token, limits)


def _token(token: str | None, file: str | None, problems: list[Problem]) -> str | None:
    if token is not None and file is not None:
        problems.append(Problem(ORIGIN, "expected token or token_file, found both; leave one out"))
    elif file is not None:
        token = _read_token(Path(file), problems)
    if token is not None and not (1 <= len(token) <= _LONGEST_TOKEN and token.isascii() and token.isprintable()):
        problems.append(
            Problem(
                ORIGIN,
                f"expected a token of 1 to {_LONGEST_TOKEN} printable ASCII characters, found {_described(token)}; "
                "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'",
            )
        )
    return token


def _described(token: str) -> str:
    """A secret that is none, without telling it."""
    if len(token) > _LONGEST_TOKEN:
        return "more"
    return "other characters in it" if token else "nothing"


def _read_token(file: Path, problems: list[Problem]) -> str | None:
    try:
        with file.open("rb") as opened:
            return opened.read(_LONGEST_TOKEN + 2).decode("latin-1").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        problems.append(
            Problem(ORIGIN, f"expected the token in the file {str(file)!r}, found that it cannot be read: {reason}")
        )
        return None


def _least(values: Mapping[str, Any], name: str, least: int, default: Any, problems: list[Problem]) -> Any:
    value = values.get(name, default)
    if not least <= value <= 1_000_000:  # neither may a number that is none (nan) pass
        problems.append(Problem(ORIGIN, f"expected {name} of {least} to 1000000, found {value:g}"))
    return value
