"""The environment: `ELASTIC_<NAME>`, then `PET_<NAME>`, then the variables that torchrun gives a meaning.

A variable that is empty counts as unset. Other programs have variables that begin with `ELASTIC_`, too
(`ELASTIC_PASSWORD`, `ELASTIC_NODES`), and Kubernetes sets some for services (`ELASTIC_MASTER_PORT=tcp://...`). So an
unknown variable is never an error; one whose name is almost that of a setting is left out with a warning.
"""

from __future__ import annotations

import re
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

_OF_SERVICE = re.compile(r"(tcp|udp|sctp)://")
_TYPING_ERROR = 0.8
"""How alike a name must be to count as a misspelt one of ours. `PORT` and `HEALTH_PORT` are at 0.53."""


def from_environment(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """What the environment sets, without the fallbacks."""
    findings = Findings(from_torchrun(environ, specs))
    for spec in specs.values():
        names = [name for name in spec.own_variables() if environ.get(name)]
        for name in (*names, *spec.also_reads):
            if _is_of_service(name, environ):
                message = "Kubernetes has set this to the address of a service, which is no port"
                findings.left_out.append(Problem(name, message))
        if own := [name for name in names if not _is_of_service(name, environ)]:
            findings.found[spec.name] = Found(environ[own[0]], own[0])
    valid = {PREFIX + name.upper() for name in specs}
    for name in sorted({name for name in environ if name.startswith(PREFIX)} - valid - NOT_SETTINGS):
        near = nearest(name.removeprefix(PREFIX), (variable.removeprefix(PREFIX) for variable in valid), _TYPING_ERROR)
        if near is not None:
            findings.left_out.append(Problem(name, f"unknown variable; did you mean {PREFIX}{near}?"))
    return findings


def _is_of_service(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes has set it, in every pod, to the address of a service whose name matches our variable."""
    return name.endswith("_PORT") and bool(_OF_SERVICE.match(environ.get(name, "")))


def from_torchrun(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, Found]:
    """What torchrun's special variables set, which are not named after a flag."""
    found = {}
    for spec in specs.values():
        for name, meaning in spec.also_reads.items():
            if environ.get(name) and not _is_of_service(name, environ) and (raw := meaning(environ[name])):
                found[spec.name] = Found(raw, name)
    return found


def fallbacks(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, Found]:
    """What variables of other programs set, such as LOGLEVEL; they are weaker than a config file."""
    pairs = [(spec.name, name) for spec in specs.values() for name in spec.fallbacks if environ.get(name)]
    return {setting: Found(environ[name], name) for setting, name in pairs}
