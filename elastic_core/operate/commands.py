"""The flags and the help texts of the commands beside `elastic run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.compat import choices
from elastic_core.config import Command, Spec
from elastic_core.config.explain import command_help
from elastic_core.errors import ExitCode
from elastic_core.parsing import parse_boolean, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from elastic_core.clock import Duration

ANSWER: Duration = 10.0
"""Seconds for an answer of the store."""

ROOM = 1000
"""Nodes that a served store has room for at least."""

_JOB = {
    "rdzv_backend": f"the job's backend; unset: {choices.BACKEND}",
    "rdzv_endpoint": "where the nodes of the job meet; c10d and etcd take several",
    "rdzv_id": "name of the job; needed, unless the backend has a name of its own for a job without one",
    "rdzv_conf": "options of the backend, the same as the job's; repeated flags add up",
    "rdzv_secret_file": "file of the job's secret, without which nothing that is signed can be read",
}


def own_flag(name: str, parse: Any, default: object, about: str, metavar: str = "", unit: str = "") -> Spec:
    """A flag of a command alone. Arguments as of `Spec`; `about` is its help."""
    return Spec(name, parse, default, "own", about, metavar, unit, torchrun=False, flag_only=True)


STATUS = Command(
    "status",
    """\
usage: elastic status --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Shows a job from outside: its round, the members and when each gave its last beat, which nodes wait,
which are missing, and why the last round ended. It takes no part in the job and changes nothing. It
looks for a little longer than one interval between beats, and longer still if a beat does not come.
""",
    _JOB,
    (
        own_flag("json", parse_boolean, False, "write JSON"),
        own_flag("timeout", seconds(above=0), ANSWER, "for the store to answer", "S", "seconds"),
    ),
    example="elastic status --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the job is shown, whatever its state",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "no job of this id has met there",
    },
)

DRAIN = Command(
    "drain",
    """\
usage: elastic drain NODE --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Asks one node to leave: it stops its workers, its agent exits with 9 (0 if none has run, or all
have succeeded), and the others go on without it. NODE is a node's id, or the name of its host or its
rank if only one node has it. The command waits until the node has left.
""",
    _JOB,
    (own_flag("timeout", seconds(), 120.0, "for the node to leave; 0: only ask", "S", "seconds"),),
    ("NODE",),
    example="elastic drain node3 --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the node has left; with --timeout=0: it was asked to",
        ExitCode.RENDEZVOUS_TIMEOUT: "the node was asked, and has not left in time",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "there is no such node, or no job of this id",
    },
)

SERVE = Command(
    "serve",
    """\
usage: elastic serve --rdzv-endpoint [HOST:]PORT [flags]

Runs the store at which the nodes of jobs meet, in a process that is not a node, until SIGTERM or
SIGINT. With a port alone it serves on all addresses of this machine.
""",
    {
        "rdzv_backend": f"the backend whose store is wanted; unset: {choices.BACKEND}",
        "rdzv_endpoint": "where to serve; with a port alone, on all addresses of this machine",
        "nnodes": f"how many nodes to have room for: MAX, and never fewer than {ROOM}",
        "log_format": "format of the messages on stderr",
        "log_level": "lowest level of the messages",
    },
    example="elastic serve --rdzv-endpoint :29400",
    codes={
        ExitCode.SUCCESS: "it served until it was asked to end",
        ExitCode.BAD_CONFIGURATION: "the port is taken, or the endpoint is not an address of this machine",
    },
)

REQUIRED_FOR_SERVE: Mapping[str, str] = {
    "rdzv_endpoint": "expected where to serve, found nothing; give --rdzv-endpoint=[HOST:]PORT",
}


_JSON = own_flag("json", parse_boolean, False, "write JSON")
EXPLAIN = (_JSON,)
"""The flags of `elastic explain` beside those of `elastic run`."""


def explain_help() -> str:
    """What `elastic explain --help` prints."""
    return command_help(
        """\
usage: elastic explain [--json] [flags of elastic run] [script]

Shows the configuration that elastic run would use with these flags, variables and this config file,
and where each value comes from. It starts nothing. elastic run --help shows the flags of elastic run.
""",
        (_JSON,),
        "elastic explain --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py",
        {
            ExitCode.SUCCESS: "the configuration is valid",
            ExitCode.BAD_CONFIGURATION: "the configuration is not valid; every problem is listed",
        },
    )


PLUGINS = Command(
    "plugins",
    """\
usage: elastic plugins [flags]

Lists what is installed, what it brings, and what failed to load and why.
""",
    {},
    (_JSON,),
    codes={ExitCode.SUCCESS: "the plugins are listed, even if some failed to load"},
    alone=True,
)
