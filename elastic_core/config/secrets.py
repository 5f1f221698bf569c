"""Values of options that nobody is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.text import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ALWAYS = frozenset({"password", "secret", "token"})
"""Also where the plugin does not say so, or is not there to say it."""


def is_secret(option: str, declared: Collection[str] = ()) -> bool:
    """Whether the option's value is a secret; `declared` are names with underscores, in lower case."""
    name = option.strip().replace("-", "_").lower()
    return name in _ALWAYS or name in declared


def without_secrets(options: Mapping[str, str], declared: Collection[str]) -> dict[str, str]:
    """The options as they may be shown."""
    return {name: HIDDEN if is_secret(name, declared) else value for name, value in options.items()}
