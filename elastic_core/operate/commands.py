"""The flags and help texts of all commands except `elastic run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import compat
from elastic_core.config import Command, Spec
from elastic_core.errors import ExitCode
from elastic_core.parsing import parse_boolean, seconds

if TYPE_CHECKING:
    from typing import Any

    from elastic_core.clock import Duration

ANSWER: Duration = 10.0
"""The number of seconds to wait for the store to answer."""

ROOM = 1000
"""The minimum number of nodes for which a served store is sized."""

_JOB = {
    "rdzv_backend": f"the job's backend; by default {compat.BACKEND}",
    "rdzv_endpoint": "address of the job's rendezvous; c10d and etcd accept a list",
    "rdzv_id": "id of the job; required unless the backend has a default",
    "rdzv_conf": "options for the backend, the same as on the job's nodes; may be repeated",
    "master_addr": "address of rank 0 of a job on static; used without an endpoint",
    "master_port": "port of rank 0 of such a job",
    "rdzv_secret_file": "file with the job's signing secret; required to read a signed job",
}

_ENDPOINT = "this command requires --rdzv-endpoint=HOST:PORT; jobs without an endpoint cannot be observed"
_NEEDED = {"rdzv_endpoint": _ENDPOINT, "rdzv_id": "this command requires --rdzv-id=ID"}

_LOG = {"log_format": "format of the log on stderr", "log_level": "minimum level of log messages"}


def own_flag(name: str, parse: Any, default: object, about: str, metavar: str = "", unit: str = "") -> Spec:
    """Return the spec of a flag that only one command has. `about` is the help text."""
    return Spec(name, parse, default, "own", about, metavar, unit, flag_only=True)


_JSON = own_flag("json", parse_boolean, False, "print JSON")

STATUS = Command(
    "status",
    """\
usage: elastic status --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Shows a running job without joining or changing it: the round, its members and their last heartbeats,
waiting and missing nodes, and why the last round ended. To see every node's heartbeat, the command
watches the job for slightly longer than the heartbeat interval, or longer if a heartbeat is late.
""",
    {**_JOB, **_LOG},
    (
        _JSON,
        own_flag("timeout", seconds(above=0), ANSWER, "how long to wait for the store to answer", "S", "seconds"),
    ),
    example="elastic status --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the job was shown, whatever its state",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "no job with this id has used this endpoint",
    },
    required=_NEEDED,
)

_DEADLINE = own_flag(
    "deadline",
    seconds(above=0),
    None,
    "how long workers may take to exit before they are killed, capped at the node's --shutdown-timeout",
    "S",
    "seconds",
)


def _patience(whom: str) -> Spec:
    about = f"how long to wait for the {whom} to leave; 0 disables the wait"
    return own_flag("timeout", seconds(), 120.0, about, "S", "seconds")


DRAIN = Command(
    "drain",
    """\
usage: elastic drain NODE --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Asks one node to leave the job, and waits until it has left. The node stops its workers, and its
agent exits with code 9 (code 0 if none of its workers has run, or if all have succeeded). The other
nodes continue without it. NODE is a node's id, or a host name or rank that matches exactly one
node.
""",
    {**_JOB, **_LOG},
    (_DEADLINE, _patience("node")),
    ("NODE",),
    example="elastic drain node3 --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the node has left; with --timeout=0, it was asked to leave",
        ExitCode.RENDEZVOUS_TIMEOUT: "the node was asked to leave, but did not leave in time",
        ExitCode.STORE_UNREACHABLE: "the store does not answer",
        ExitCode.NOT_FOUND: "no such node, or no job with this id",
    },
    required=_NEEDED,
)

STOP = Command(
    "stop",
    """\
usage: elastic stop --rdzv-endpoint HOST[:PORT] --rdzv-id ID [flags]

Asks all nodes to leave the job, and waits until they have left. Workers that call
elastic_core.should_stop save a checkpoint after the same step; other workers get SIGTERM. Each agent
exits with code 9 (code 0 if none of its workers has run, or if all have succeeded). To continue the
job, run its elastic run command again.
""",
    {**_JOB, **_LOG},
    (_DEADLINE, _patience("nodes")),
    example="elastic stop --rdzv-endpoint node0:29400 --rdzv-id job7",
    codes={
        ExitCode.SUCCESS: "the nodes have left; with --timeout=0, they were asked to leave",
        ExitCode.RENDEZVOUS_TIMEOUT: "the nodes were asked to leave, but some did not leave in time",
        ExitCode.STORE_UNREACHABLE: "the store does not answer, or it stopped and some nodes were not seen to leave",
        ExitCode.NOT_FOUND: "no job with this id, or no node in it",
    },
    required=_NEEDED,
)

SERVE = Command(
    "serve",
    """\
usage: elastic serve --rdzv-endpoint [HOST:]PORT [flags]

Hosts a rendezvous store for jobs in a separate process, outside the training nodes, until it
receives SIGTERM or SIGINT.
""",
    {
        "rdzv_backend": f"backend whose store is served; by default {compat.BACKEND}",
        "rdzv_endpoint": "address to serve on; without a host, all addresses of this machine",
        "nnodes": f"number of nodes that the store must support; values below {ROOM} are raised to {ROOM}",
        **_LOG,
    },
    example="elastic serve --rdzv-endpoint :29400",
    codes={
        ExitCode.SUCCESS: "stopped by a signal",
        ExitCode.BAD_CONFIGURATION: "the port is in use, or the endpoint is not an address of this machine",
    },
    required={"rdzv_endpoint": "elastic serve requires --rdzv-endpoint=[HOST:]PORT"},
)


EXPLAIN = Command(
    "explain",
    """\
usage: elastic explain [--json] [flags of elastic run] [script]

Shows the configuration that elastic run would use with the same flags, variables and config file, and
the origin of each value. No workers are started. For the flags, see elastic run --help.
""",
    {},
    (_JSON,),
    example="elastic explain --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py",
    codes={
        ExitCode.SUCCESS: "the configuration is valid",
        ExitCode.BAD_CONFIGURATION: "the configuration is invalid; every problem is listed",
    },
    like_run=True,
)

PLUGINS = Command(
    "plugins",
    """\
usage: elastic plugins [flags]

Lists the installed plugins and what each provides, and explains why any of them failed to load.
""",
    {},
    (_JSON,),
    codes={ExitCode.SUCCESS: "the plugins were listed, even if some failed to load"},
    alone=True,
)
