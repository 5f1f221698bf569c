"""Renders settings: the commands' help texts, and the resolved configuration with each value's origin."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.config.reading import command_specs, own_specs
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import GROUPS, Spec, specs_of_options
from elastic_core.errors import ExitCode
from elastic_core.parsing import NodeRange, StreamMap, format_options, is_secret, join_commas
from elastic_core.text import HIDDEN, in_one_line

if TYPE_CHECKING:
    from elastic_core.config.reading import Reading
    from elastic_core.hooks.records import CommandRecord, Option

VERSION = 2
"""The schema version of `as_dict`, which is incremented when a field is removed or changes its meaning."""

_HEAD = """\
usage: elastic run [flags] script [arguments of the script]

Starts the workers of a training job on this node. Flags may use dashes or underscores; --name=false
turns a switch off. Everything after the script is passed to it. If several sources set a value, the
first of these wins: the flag, its variables in the order shown, the config file, Slurm or a
Kubernetes Indexed Job, the default.
"""

_EXAMPLE = "elastic run --nnodes 2:4 --nproc-per-node 8 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py"
_WIDTH = 100
_USER = re.compile(r"(?<=://)[^/\s]*(?=@)")  # a URL's user, perhaps with a password


def as_dict(
    reading: Reading,
    added_options: Iterable[Option],
    secrets: Collection[str] = (),
    not_used: Collection[str] = (),
    starter: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the resolved configuration as JSON values.

    `settings` and `plugin_options` map each name to a `value`, a `unit` (may be empty) and an `origin`. Ranges and
    stream maps are strings as on the command line, `nnodes` is `MIN:MAX`, sets and tuples are lists, and unset values
    are null. Secret values are replaced with `***`.

    Args:
        added_options: the plugins' options with which the configuration was read.
        secrets: names of secret options; see `PluginManager.secret_options`.
        not_used: options in `--rdzv-conf` that the backend ignores; the entry for `rdzv_conf` lists them as `not_used`.
        starter: the result of the worker starter's `explain`.
    """
    return {
        "version": VERSION,
        "config_file": None if reading.config_file is None else str(reading.config_file),
        "left_out": [{"origin": it.origin, "reason": it.message} for it in reading.left_out],
        "script": reading.script,
        "script_args": list(reading.script_args),
        "settings": _settings(reading, secrets, not_used),
        "plugin_options": _plugin_options(reading, added_options),
        "worker_starter": _without_secrets(starter or {}, secrets),
    }


def as_text(content: Mapping[str, Any]) -> str:
    """Return the result of `as_dict` as a table of all settings."""
    rows = []
    for name, entry in {**content["settings"], **content["plugin_options"]}.items():
        unit = f" {entry['unit']}" if entry["unit"] and entry["value"] is not None else ""
        useless = f"; not used: {', '.join(entry['not_used'])}" if "not_used" in entry else ""
        rows.append((name, as_word(entry["value"]) + unit, entry["origin"] + useless))
    wide, wider = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:{wide}}  {shown:{wider}}  {origin}" for name, shown, origin in rows]
    script = " ".join([content["script"] or "none", *content["script_args"]])
    left_out = (f"left out: {it['origin']}: {it['reason']}" for it in content["left_out"])
    head = [f"config file: {content['config_file'] or 'none'}", *left_out, f"script: {script}", ""]
    return "\n".join(map(in_one_line, [*head, *lines, *_starter_lines(content["worker_starter"])])) + "\n"


def _without_secrets(facts: Mapping[str, Any], secrets: Collection[str]) -> dict[str, Any]:
    return {name: HIDDEN if is_secret(name, secrets) else fact for name, fact in facts.items()}


def _starter_lines(starter: Mapping[str, Any]) -> list[str]:
    lines = ["", "worker starter:"] if starter else []
    for name, fact in starter.items():
        lines.append(f"  {name}: {len(fact) if isinstance(fact, Mapping) else fact}")
        if isinstance(fact, Mapping):
            lines += [f"    {key} {why}" for key, why in fact.items()]
    return lines


def _settings(reading: Reading, secrets: Collection[str], not_used: Collection[str]) -> dict[str, dict[str, Any]]:
    entries = {}
    for name, spec in SPECS.items():
        value = getattr(reading.settings, name)
        if isinstance(value, Mapping):
            value = _without_secrets(value, secrets)
        entries[name] = {"value": _plain(value), "unit": spec.unit, "origin": reading.origins[name]}
    if not_used:
        entries["rdzv_conf"]["not_used"] = list(not_used)
    return entries


def _plugin_options(reading: Reading, options: Iterable[Option]) -> dict[str, dict[str, Any]]:
    entries = {}
    for option in options:
        value = reading.added[option.name]
        shown = HIDDEN if option.secret and value is not None else _plain(value)
        entries[option.name] = {"value": shown, "unit": option.unit, "origin": reading.origins[option.name]}
    return entries


def as_word(value: object) -> str:
    """Format a value as on the command line. None becomes `unset`, and an empty string or list becomes `empty`."""
    value = _plain(value)
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return format_options(value) or "empty"
    if isinstance(value, list):
        return join_commas(map(str, value)) or "empty"
    return str(value) or "empty"


def _plain(value: Any) -> Any:
    if isinstance(value, NodeRange | StreamMap | Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [item.name if isinstance(item, signal.Signals) else str(item) for item in value]
    return _USER.sub(HIDDEN, value) if isinstance(value, str) else value


def help_text(added_options: Iterable[Option] = ()) -> str:
    """Return the help text of `elastic run`."""
    specs = [*SPECS.values(), *specs_of_options(added_options).values()]
    groups = [_paragraph(group, (_flag(spec) for spec in specs if spec.group == group)) for group in GROUPS]
    # The text after a semicolon is about other commands.
    codes = {code: code.meaning.partition("; ")[0] for code in ExitCode}
    del codes[ExitCode.NOT_FOUND]
    lines = [f"  {code:<3} {meaning}" for code, meaning in codes.items()]
    lines.append("  128 + n: signal n ended the agent; its workers were stopped")
    return "\n\n".join([_HEAD.rstrip(), *groups, f"example:\n  {_EXAMPLE}", _paragraph("exit codes", lines)])


def command_help(record: CommandRecord, added: Sequence[Option] = ()) -> str:
    """Return the help text of a command. `added` contains the options that its plugin adds to `run`."""
    specs = command_specs(record, added)
    required = (f" {specs[name].flag} {specs[name].metavar}" for name in record.required)
    run = " [flags of elastic run] [script]" if record.like_run else ""
    words = " ".join([f"elastic {record.name}", *record.operands])
    flags = own_specs(record) if record.like_run else specs
    meanings = [f"  {int(code)}  {meaning}" for code, meaning in record.codes.items()]
    parts = [
        f"usage: {words}{''.join(required)} [flags]{run}",
        (record.about or record.summary).strip(),
        _paragraph("flags", map(_flag, flags.values())),
        f"example:\n  {record.example or words}",
        _paragraph("exit codes", [*meanings, "  others: see elastic run --help"]),
    ]
    return "\n\n".join(parts)


def _paragraph(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{title}:", *lines])


def _flag(spec: Spec) -> str:
    import textwrap

    names = ", ".join(name for name in (spec.short, spec.flag) if name)
    unit = f" {spec.unit}" if spec.unit and spec.default is not None else ""
    variables = f"; {', '.join(spec.variables())}" if spec.variables() else ""
    default = "unset" if spec.default == "" else as_word(spec.default)
    about = f"{spec.help} (default: {default}{unit}{variables})"
    body = textwrap.wrap(about, _WIDTH - 6, break_on_hyphens=False, break_long_words=False)
    return "\n".join([f"  {names} {spec.metavar}".rstrip(), *(f"      {line}" for line in body)])
