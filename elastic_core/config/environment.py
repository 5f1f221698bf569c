"""The environment: `ELASTIC_<NAME>`, then `PET_<NAME>`, then torchrun's special variables.

An empty variable is treated as unset. Other programs also use variables that begin with `ELASTIC_` (`ELASTIC_PASSWORD`,
`ELASTIC_NODES`), and Kubernetes sets some for services (`ELASTIC_MASTER_PORT=tcp://...`). An unknown variable is
therefore never an error, but there is a warning if its name resembles that of a setting.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.config.spec import Findings, RawValue
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config.spec import Spec

PREFIX = "ELASTIC_"
NOT_SETTINGS = frozenset({"ELASTIC_DISABLE_PLUGINS", "ELASTIC_BEAT_FILE", "ELASTIC_STOP_FILE", "ELASTIC_TIMER_CLIENT"})
"""Variables that have our prefix but are not settings. Other modules read them."""

_OF_SERVICE = re.compile(r"(tcp|udp|sctp)://")
_TYPING_ERROR = 0.8
"""The similarity above which an unknown name is considered misspelled. The similarity of `PORT` and `HEALTH_PORT` is
0.53."""


def from_environment(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """Return the settings from the environment, without the fallbacks."""
    findings = Findings(from_torchrun(environ, specs))
    for spec in specs.values():
        names = [name for name in spec.own_variables() if environ.get(name)]
        for name in (*names, *spec.also_reads):
            if _is_of_service(name, environ):
                message = "not a port: Kubernetes has set this variable to the address of a service"
                findings.left_out.append(Problem(name, message))
        if own := [name for name in names if not _is_of_service(name, environ)]:
            findings.found[spec.name] = RawValue(environ[own[0]], own[0])
    valid = {PREFIX + name.upper() for name in specs}
    for name in sorted({name for name in environ if name.startswith(PREFIX)} - valid - NOT_SETTINGS):
        near = nearest(name.removeprefix(PREFIX), (variable.removeprefix(PREFIX) for variable in valid), _TYPING_ERROR)
        if near is not None:
            findings.left_out.append(Problem(name, f"unknown variable; did you mean {PREFIX}{near}?"))
    return findings


def _is_of_service(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set the variable to a service's address, as it does in every pod."""
    return name.endswith("_PORT") and bool(_OF_SERVICE.match(environ.get(name, "")))


def from_torchrun(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, RawValue]:
    """Return the settings from torchrun's special variables, whose names are not derived from flags."""
    found = {}
    for spec in specs.values():
        for name, meaning in spec.also_reads.items():
            if environ.get(name) and not _is_of_service(name, environ) and (raw := meaning(environ[name])):
                found[spec.name] = RawValue(raw, name)
    return found


def fallbacks(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, RawValue]:
    """Return the settings from other programs' variables, such as LOGLEVEL. A config file overrides them."""
    pairs = [(spec.name, name) for spec in specs.values() for name in spec.fallbacks if environ.get(name)]
    return {setting: RawValue(environ[name], name) for setting, name in pairs}
