"""The resolved configuration, with the origin of every value, for people and for programs."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.config.lists import format_options, join_commas
from elastic_core.config.secrets import without_secrets
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import specs_of_options
from elastic_core.config.values import NodeRange, StreamMap
from elastic_core.text import HIDDEN

if TYPE_CHECKING:
    from elastic_core.config.reading import Reading
    from elastic_core.hooks.records import Option

VERSION = 1
"""Of the schema of `as_dict`; grows when a field changes its meaning or goes away, not when one is added."""


def as_dict(reading: Reading, added_options: Iterable[Option] = (), secrets: Collection[str] = ()) -> dict[str, Any]:
    """The reading as JSON values.

    `settings` and `plugin_options` map names to `value`, `unit` (empty: none) and `origin`. Ranges and stream maps
    are text as on the command line, `nnodes` is `MIN:MAX`, sets and tuples are lists, unset is null. Values of
    secret options are `***`; `secrets` are those of the records, see `PluginManager.secret_options`.
    """
    added_options = list(added_options)
    values = _shown(reading, added_options, secrets)
    units = {name: spec.unit for name, spec in specs_of_options(added_options).items()}
    return {
        "version": VERSION,
        "config_file": None if reading.config_file is None else str(reading.config_file),
        "script": reading.script,
        "script_args": list(reading.script_args),
        "settings": {name: _entry(values[name], spec.unit, reading.origins[name]) for name, spec in SPECS.items()},
        "plugin_options": {
            name: _entry(values[name], units.get(name.replace("-", "_"), ""), reading.origins[name])
            for name in reading.added
        },
    }


def as_text(reading: Reading, added_options: Iterable[Option] = (), secrets: Collection[str] = ()) -> str:
    """The reading as lines of three columns: setting, value with unit, origin. Arguments as for `as_dict`."""
    added_options = list(added_options)
    document = as_dict(reading, added_options, secrets)
    values = _shown(reading, added_options, secrets)
    rows = []
    for name, entry in {**document["settings"], **document["plugin_options"]}.items():
        shown = as_word(values[name])
        unit = f" {entry['unit']}" if entry["unit"] and values[name] is not None else ""
        rows.append((name, shown + unit, entry["origin"]))
    wide, wider = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:{wide}}  {shown:{wider}}  {origin}" for name, shown, origin in rows]
    script = " ".join([reading.script or "none", *reading.script_args])
    head = [f"config file: {reading.config_file or 'none'}", f"script: {script}", ""]
    return "\n".join([*head, *lines]) + "\n"


def _shown(reading: Reading, added_options: Iterable[Option], secrets: Collection[str]) -> dict[str, object]:
    """Every value by name, without secrets."""
    settings = {name: getattr(reading.settings, name) for name in SPECS}
    confs = {name: without_secrets(value, secrets) for name, value in settings.items() if isinstance(value, Mapping)}
    hidden = {option.name for option in added_options if option.secret and reading.added.get(option.name) is not None}
    return {**settings, **confs, **reading.added, **dict.fromkeys(hidden, HIDDEN)}


def as_word(value: object) -> str:
    """A value as one would write it on the command line; `unset` for None, `empty` for nothing."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return format_options(value) or "empty"
    if isinstance(value, frozenset):
        return ",".join(str(item) for item in sorted(value)) or "empty"
    if isinstance(value, tuple):
        return join_commas(_name(item) for item in value) or "empty"
    return str(value) or "empty"


def _name(item: object) -> str:
    return item.name if isinstance(item, signal.Signals) else str(item)


def _entry(value: object, unit: str, origin: str) -> dict[str, Any]:
    return {"value": _plain(value), "unit": unit, "origin": origin}


def _plain(value: object) -> object:
    if isinstance(value, NodeRange | StreamMap | Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_name(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
