"""What `elastic status`, `elastic drain` and `elastic serve` take, and the job that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.config import Command, NodeRange, Spec
from elastic_core.config.resolve import STATIC_RUN_ID
from elastic_core.errors import ConfigurationError, ExitCode, Problem
from elastic_core.parsing import parse_boolean, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from elastic_core.clock import Duration

ANSWER: Duration = 10.0
"""Seconds that a store has for an answer."""

_DEFAULT_BACKEND = "c10d"
_ROOM = 1000  # nodes that a store has room for, when it is told of fewer
_JOB = {
    "rdzv_backend": f"the job's backend; unset: {_DEFAULT_BACKEND}",
    "rdzv_endpoint": "where the nodes of the job meet; etcd takes several",
    "rdzv_id": f"name of the job; needed with any backend but static, whose job without a name is '{STATIC_RUN_ID}'",
    "rdzv_conf": "options of the backend, the same as the job's; repeated flags add up",
}


def _own(name: str, parse: Any, default: object, about: str, metavar: str = "", unit: str = "") -> Spec:
    return Spec(name, parse, default, "own", about, metavar, unit, torchrun=False, flag_only=True)


STATUS = Command(
    "status",
    """\
usage: elastic status --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Shows a job from outside: its round, the members and when each gave its last beat, who waits, who is
missing, why the last round ended. It takes no part and changes nothing. It looks for a little more
than one interval between beats; longer, if a beat does not come.
""",
    _JOB,
    (
        _own("json", parse_boolean, False, "write JSON; its fields are in docs/reference/status.md"),
        _own("timeout", seconds(above=0), ANSWER, "for the store to answer", "S", "seconds"),
    ),
    example="elastic status --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the job is shown, however it is",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "no job of this id has met there",
    },
)

DRAIN = Command(
    "drain",
    """\
usage: elastic drain NODE --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Asks one node to leave: it stops its workers, its agent exits with 0, and the others go on without it.
NODE is a node's id, else the name of its host or its rank, where that means one node. Waits until
the node has left.
""",
    _JOB,
    (_own("timeout", seconds(), 120.0, "for the node to leave; 0: only ask", "S", "seconds"),),
    ("NODE",),
    example="elastic drain node3 --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "it has left; with --timeout=0: it was asked",
        ExitCode.RENDEZVOUS_TIMEOUT: "it was asked, and has not left in time",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "there is no such node, or no job of this id",
    },
)

SERVE = Command(
    "serve",
    """\
usage: elastic serve --rdzv-endpoint [HOST:]PORT [flags]

Runs the store at which the nodes of jobs meet, in a process that is no node of any, until SIGTERM
or SIGINT. With a port alone it serves on all addresses of this machine.
""",
    {
        "rdzv_backend": f"the backend whose store is wanted; unset: {_DEFAULT_BACKEND}",
        "rdzv_endpoint": "where to serve; with a port alone, on all addresses of this machine",
        "nnodes": f"how many nodes to have room for: MAX, and never fewer than {_ROOM}",
        "log_format": "how the messages look on stderr",
        "log_level": "messages from this level on",
    },
    example="elastic serve --rdzv-endpoint :29400",
    codes={
        ExitCode.SUCCESS: "it has served until it was asked to end",
        ExitCode.BAD_CONFIGURATION: "the port is taken, or the endpoint is not this machine's",
    },
)

REQUIRED_FOR_JOB: Mapping[str, str] = {
    "rdzv_endpoint": "expected where the nodes of the job meet, found nothing; give --rdzv-endpoint=HOST:PORT",
}
REQUIRED_FOR_SERVE: Mapping[str, str] = {
    "rdzv_endpoint": "expected where to serve, found nothing; give --rdzv-endpoint=[HOST:]PORT",
}


@dataclass(frozen=True)
class Target:
    """The job that a command is about. `conf` holds options of the backend as text."""

    backend: str
    endpoint: str
    run_id: str
    conf: Mapping[str, str]


def target_of(values: Mapping[str, Any]) -> Target:
    """From the values of a command's reading. Raises ConfigurationError when it does not say which job."""
    backend = values["rdzv_backend"] or _DEFAULT_BACKEND
    run_id = values["rdzv_id"] or (STATIC_RUN_ID if backend == "static" else "")
    if not run_id:
        raise ConfigurationError(Problem("--rdzv-id", "expected the name of the job, found none; give --rdzv-id"))
    return Target(backend, values["rdzv_endpoint"], run_id, values["rdzv_conf"])


def backend_to_serve(values: Mapping[str, Any]) -> str:
    """The backend whose store is wanted."""
    return str(values["rdzv_backend"] or _DEFAULT_BACKEND)


def room_for(nodes: NodeRange) -> int:
    """How many nodes a store should have room for."""
    return max(nodes.max, _ROOM)


def serving_endpoint(text: str) -> str:
    """`[HOST:]PORT` as `HOST:PORT`, all addresses if there is no host."""
    port = text.strip().removeprefix(":")
    return f"0.0.0.0:{port}" if port.isdigit() else text.strip()
