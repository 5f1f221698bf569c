"""Formats the output of `elastic plugins`, which lists installed, broken and blocked plugins, and all conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.hooks.discovery import ALLOW_FLAG, CORE, DISABLE_VARIABLE, HANDLERS_GROUP, own_version
from elastic_core.hooks.records import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.hooks.manager import Plugin, PluginManager
    from elastic_core.hooks.records import Option, Record

VERSION = 1
"""The version of the JSON format that docs/reference/json.md describes. The version is incremented when a key is
removed or changes its meaning."""


def as_dict(manager: PluginManager) -> dict[str, Any]:
    """Return the listing for `--json`."""
    return {
        "version": VERSION,
        "elastic_core": own_version(),
        "plugins": [_plugin(manager, plugin) for plugin in manager.plugins],
        "torchrun_handlers": [
            {"name": handler.source.plugin, "target": handler.target, **handler.source.as_dict()}
            for handler in manager.handlers
        ],
        "failed": [
            {
                **failure.source.as_dict(),
                "elastic_core": own_version(),
                "reason": failure.reason,
                "traceback": failure.traceback,
            }
            for failure in manager.failures
        ],
        "blocked": [{**source.as_dict(), "by": by} for source, by in manager.blocked.items()],
        "blocked_but_not_installed": list(manager.unknown_blocks),
        "allowed": None if manager.allowed is None else list(manager.allowed),
        "allowed_but_not_installed": list(manager.unknown_allowed),
        "conflicts": [
            {
                "kind": conflict.noun,
                "name": conflict.name,
                "providers": [source.as_dict() for source in conflict.sources],
            }
            for conflict in manager.conflicts()
        ],
    }


def _plugin(manager: PluginManager, plugin: Plugin) -> dict[str, Any]:
    return {
        **plugin.source.as_dict(),
        "target": plugin.target,
        "hooks": list(plugin.hooks),
        "options": [_option(option) for option in manager.added_by(plugin.source)],
        "records": [
            {"kind": kind.noun, **_record(item.record)}
            for kind in KINDS
            for item in manager.records(kind)
            if item.source == plugin.source
        ],
    }


def _record(record: Record) -> dict[str, Any]:
    return {
        "name": record.name,
        "aliases": list(record.aliases),
        "summary": record.summary,
        "options": None if record.options is None else [_option(option) for option in record.options],
    }


def _option(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type.__name__,
        "default": option.default,
        "unit": option.unit,
        "help": option.help,
    }


def as_text(manager: PluginManager) -> str:
    """Return the listing as text, built from `as_dict` so that both have the same content."""
    return "\n".join(_lines(as_dict(manager)))


def _lines(listing: dict[str, Any]) -> Iterator[str]:
    yield f"{CORE} {listing['elastic_core']}"
    for plugin in listing["plugins"]:
        yield ""
        yield from _plugin_lines(plugin)
    handlers = [f"{item['name']}: {item['target']} ({_release(item)})" for item in listing["torchrun_handlers"]]
    failed = [f"{_titled(item)}: {item['reason']}" for item in listing["failed"]]
    conflicts = [
        f"{item['kind']} {item['name']}: {' and '.join(map(_titled, item['providers']))}"
        for item in listing["conflicts"]
    ]
    yield from _section(f"Backends written for torchrun ({HANDLERS_GROUP}), loaded when selected", handlers)
    yield from _section("Failed to load", failed)
    for by, absent in ((DISABLE_VARIABLE, listing["blocked_but_not_installed"]), (ALLOW_FLAG, ())):
        blocked = [_titled(item) for item in listing["blocked"] if item["by"] == by]
        yield from _section(f"Blocked by {by}", [*blocked, *map(_absent, absent)])
    yield from _section(f"Allowed by {ALLOW_FLAG}", [*map(_absent, listing["allowed_but_not_installed"])])
    yield from _section("Conflicts (selecting such a name is an error; such options are omitted)", conflicts)


def _release(item: dict[str, Any]) -> str:
    return f"{item['distribution']} {item['version']}"


def _absent(name: str) -> str:
    return f"{name} (not installed)"


def _titled(item: dict[str, Any]) -> str:
    return f"{item['plugin']} ({_release(item)})"


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _plugin_lines(plugin: dict[str, Any]) -> Iterator[str]:
    yield f"{_release(plugin)}: plugin {plugin['plugin']} ({plugin['target']})"
    yield f"  hooks: {', '.join(plugin['hooks']) or 'none'}"
    for option in plugin["options"]:
        yield f"  adds option {_option_line(option)}"
    for record in plugin["records"]:
        aliases = f" (also {', '.join(record['aliases'])})" if record["aliases"] else ""
        yield f"  {record['kind']} {record['name']}{aliases}: {record['summary']}"
        options = record["options"]
        yield from (
            ["    takes any option"] if options is None else [f"    {_option_line(option)}" for option in options]
        )


def _option_line(option: dict[str, Any]) -> str:
    unit = f" {option['unit']}" if option["unit"] else ""
    default = "unset" if option["default"] is None else f"{option['default']}{unit}"
    of_unit = unit if option["default"] is None else ""
    return f"{option['name']} ({option['type']}{of_unit}, default {default}): {option['help']}"
