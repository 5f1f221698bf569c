"""What `elastic doctor` takes beside the flags of `elastic run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.config import SPECS, Spec
from elastic_core.config.flags import scan
from elastic_core.config.spec import specs_of_options
from elastic_core.config.usage import command_help
from elastic_core.errors import ExitCode
from elastic_core.operate.doctor.examine import Wish
from elastic_core.parsing import integer, parse_boolean, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_core.hooks.records import Option

_ABOUT = """\
usage: elastic doctor [flags] [flags of elastic run] [script]

Looks whether a run with these flags, variables and this config file would work on this machine:
plugins, versions, limits, torch, names and addresses, the way to the store. It starts no workers,
and changes nothing. Each line says what was found, and what to do about it. The script is not
looked at. elastic run --help has the flags of elastic run.
"""

_EXAMPLE = "elastic doctor --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py"
_CODES = {
    ExitCode.SUCCESS: "nothing is at fault; there may be warnings",
    ExitCode.BAD_CONFIGURATION: "a run would fail on this machine, or with these flags",
    ExitCode.RENDEZVOUS_TIMEOUT: "too few doctors met (--peers)",
    ExitCode.STORE_UNREACHABLE: "the store, which is expected or seems to be there, does not answer",
}


def _own(name: str, parse: Any, default: object, about: str, metavar: str = "", unit: str = "") -> Spec:
    return Spec(name, parse, default, "own", about, metavar, unit, torchrun=False, flag_only=True)


OWN: tuple[Spec, ...] = (
    _own("json", parse_boolean, False, "write JSON; its fields are in docs/reference/doctor.md"),
    _own("expect_store", parse_boolean, False, "it is a fault if no store can be reached"),
    _own(
        "peers",
        integer(0),
        0,
        "as many doctors, this one included, run on other nodes now: meet them, try the way to each, compare versions"
        " and clocks",
        "N",
    ),
    _own("timeout", seconds(above=0), Wish.timeout, "for whatever may hang", "S", "seconds"),
    _own("peers_timeout", seconds(above=0), Wish.peers_timeout, "for all doctors to meet", "S", "seconds"),
)


def wants_help(argv: Sequence[str], added_options: Iterable[Option]) -> bool:
    """Whether `-h` or `--help` stands among the flags. `added_options`: those that plugins add to `elastic run`."""
    own = {spec.name: spec for spec in OWN}
    return scan(argv, {**SPECS, **specs_of_options(added_options), **own}).help


def help_text() -> str:
    """What `--help` prints."""
    return command_help(_ABOUT, OWN, _EXAMPLE, _CODES)


def wish_of(own: Mapping[str, Any]) -> Wish:
    """From the values of `OWN`."""
    return Wish(own["expect_store"], own["peers"], own["timeout"], own["peers_timeout"])
