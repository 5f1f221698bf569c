"""The environment: `ELASTIC_<NAME>`, then `PET_<NAME>`, then the variables that torchrun gives a meaning.

A variable that is empty counts as unset. Other programs have variables that begin with `ELASTIC_`, too
(`ELASTIC_PASSWORD`, a service's `ELASTIC_PORT`). So an unknown variable is an error only if its name is almost that of
a setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config.spec import Findings, Found
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config.spec import Spec

PREFIX = "ELASTIC_"
NOT_SETTINGS = frozenset({"ELASTIC_DISABLE_PLUGINS", "ELASTIC_BEAT_FILE", "ELASTIC_TIMER_CLIENT"})
"""Variables of our prefix that are read elsewhere."""

_TYPING_ERROR = 0.8
"""How alike a name must be to count as a misspelt one of ours. `PORT` and `HEALTH_PORT` are at 0.53."""


def from_environment(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """What the environment sets, without the fallbacks."""
    findings = Findings(from_torchrun(environ, specs))
    for spec in specs.values():
        name = next((name for name in spec.own_variables() if environ.get(name)), None)
        if name is not None:
            findings.found[spec.name] = Found(environ[name], name)
    valid = {PREFIX + name.upper() for name in specs}
    for name in sorted({name for name in environ if name.startswith(PREFIX)} - valid - NOT_SETTINGS):
        near = nearest(name.removeprefix(PREFIX), (variable.removeprefix(PREFIX) for variable in valid), _TYPING_ERROR)
        if near is not None:
            message = f"expected the variable of a setting, found an unknown one; did you mean {PREFIX}{near}?"
            findings.problems.append(Problem(name, message))
    return findings


def from_torchrun(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, Found]:
    """What torchrun's special variables set, which are not named after a flag."""
    found = {}
    for spec in specs.values():
        for name, meaning in spec.also_reads.items():
            if environ.get(name) and (raw := meaning(environ[name])):
                found[spec.name] = Found(raw, name)
    return found


def fallbacks(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, Found]:
    """What variables of other programs set, such as LOGLEVEL; they are weaker than a config file."""
    pairs = [(spec.name, name) for spec in specs.values() for name in spec.fallbacks if environ.get(name)]
    return {setting: Found(environ[name], name) for setting, name in pairs}
