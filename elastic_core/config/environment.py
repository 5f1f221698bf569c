"""The environment: `ELASTIC_<NAME>`, then `PET_<NAME>`, then the variables that torchrun gives a meaning.

A variable that is empty counts as unset. Variables of one name with a prefix that we share with other programs
(`ELASTIC_PASSWORD`, a service's `ELASTIC_PORT`) are not ours: an unknown one is reported only if it is close to a
name that we know, so that typing errors are found and strangers left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config.sources import Findings, Found
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.config.spec import Spec

PREFIX = "ELASTIC_"
NOT_SETTINGS = frozenset({"ELASTIC_DISABLE_PLUGINS", "ELASTIC_BEAT_FILE", "ELASTIC_TIMER_CLIENT"})
"""Variables of our prefix that others than the configuration read."""

_TYPING_ERROR = 0.8
"""How alike a name must be to pass for a misspelt one of ours. `PORT` and `HEALTH_PORT` are at 0.53."""


def _file_timer(text: str) -> dict[str, object]:
    return {"watchdog": "file"} if text == "1" else {}


def _uninterruptible(text: str) -> dict[str, object]:
    try:
        return {"kill_timeout": text} if float(text) > 0 else {}
    except ValueError:
        return {"kill_timeout": text}  # its parser says what is wrong


SPECIAL: Mapping[str, Callable[[str], dict[str, object]]] = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": _file_timer,
    "TORCHELASTIC_HEALTH_CHECK_PORT": lambda text: {"health": "http", "health_port": text},
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": lambda text: {"log_line_prefix_template": text},
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": lambda text: {"shutdown_timeout": text},
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": _uninterruptible,
}
"""Variables of torchrun's that are not named after a flag, and the settings that each one makes."""


def from_environment(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """What the environment sets."""
    findings = Findings(_special(environ))
    for spec in specs.values():
        own = [name for name in spec.variables() if name not in spec.also_reads and name not in spec.fallbacks]
        name = next((name for name in own if environ.get(name)), None)
        if name is not None:
            findings.found[spec.name] = Found(environ[name], name)
    findings.problems.extend(_typing_errors(environ, specs))
    return findings


def fallbacks(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """What variables set that are not about this program, such as LOGLEVEL; they are weaker than a config file."""
    pairs = [(spec.name, name) for spec in specs.values() for name in spec.fallbacks if environ.get(name)]
    return Findings({setting: Found(environ[name], name) for setting, name in pairs})


def _special(environ: Mapping[str, str]) -> dict[str, Found]:
    return {
        setting: Found(raw, variable)
        for variable, meaning in SPECIAL.items()
        if environ.get(variable)
        for setting, raw in meaning(environ[variable]).items()
    }


def _typing_errors(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> list[Problem]:
    valid = [name.upper() for name in specs]
    known = {PREFIX + name for name in valid} | NOT_SETTINGS
    problems = []
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            near = nearest(variable.removeprefix(PREFIX), valid, _TYPING_ERROR)
            if near is not None:
                message = f"expected the variable of a setting, found an unknown one; did you mean {PREFIX}{near}?"
                problems.append(Problem(variable, message))
    return problems
