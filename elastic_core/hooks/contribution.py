"""Merging what plugins contribute to the workers' environment; a bad contribution is left out and logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic_core.hooks.discovery import InvalidPlugin, described_error
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elastic_core.hooks.discovery import Source

_log = get_logger()


def merged_environment(contributions: Iterable[tuple[Source, Callable[[], Any]]]) -> dict[str, str]:
    """The variables of all plugins; of two values for one variable the first stands."""
    merged: dict[str, str] = {}
    givers: dict[str, Source] = {}
    for source, contribute in contributions:
        for name, value in _contribution(source, contribute).items():
            giver = givers.setdefault(name, source)
            if merged.setdefault(name, value) != value:
                reason = f"{giver.described} sets {name} to another value, which stands"
                _log.warning("contribution failed", **source.as_dict(), variable=name, error=reason)
    return merged


def _contribution(source: Source, contribute: Callable[[], Any]) -> Mapping[str, str]:
    try:
        return _checked(contribute())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's fault must not end the job
        reason = str(error) if isinstance(error, InvalidPlugin) else described_error(error)
        _log.warning("contribution failed", **source.as_dict(), error=reason)
        return {}


def _checked(returned: Any) -> Mapping[str, str]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise InvalidPlugin(f"expected a mapping of variables, found an object of type {type(returned).__name__}")
    for name, value in returned.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidPlugin(f"expected text for a variable and its value, found {name!r}={value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidPlugin(f"the system takes no variable {name!r} with that value: empty name, '=' or a NUL")
    return dict(returned)
