"""The built-in commands except `run`, as records like those of plugins. Each imports what it needs when it runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from elastic_core import compat
from elastic_core.errors import ElasticError, ExitCode
from elastic_core.hooks.records import COMMANDS, CommandRecord, Option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration
    from elastic_core.compose.plan import Plan
    from elastic_core.hooks.records import Context

ANSWER: Duration = 10.0
"""The number of seconds to wait for the store to answer."""

_ROOM = 1000  # the minimum number of nodes for which a served store is sized

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

_JSON = Option("json", bool, False, "print JSON")
_DEADLINE = Option(
    "deadline",
    float,
    None,
    "how long workers may take to exit before they are killed, capped at the node's --shutdown-timeout",
    "seconds",
    above=0,
)


def _patience(whom: str) -> Option:
    about = f"how long to wait for the {whom} to leave; 0 disables the wait"
    return Option("timeout", float, 120.0, about, "seconds", least=0)


def _plan(context: Context) -> Plan:
    """Return the command's plan. Raises ConfigurationError if the plan has problems."""
    plan: Any = context.plan
    checked: Plan = plan.checked()
    return checked


def _explain(context: Context, words: Sequence[str]) -> None:
    from elastic_core.cli import show, to_json
    from elastic_core.compose.policy import script_entry
    from elastic_core.config.explain import as_dict, as_text

    plan: Any = context.plan
    starter: Mapping[str, Any] = {}
    unused: Sequence[str] = ()
    broken = None
    try:
        unused = plan.checked().unused
        if words:
            entry = script_entry(plan.settings, words[0], tuple(words[1:]), os.environ)
            with plan.naming_origins():
                starter = plan.explained_starter(entry.work)
    except ElasticError as error:
        broken = error  # reported after the configuration has been shown
    options, secrets = plan.manager.added_options(), plan.manager.secret_options()
    content = as_dict(plan.reading, options, secrets, unused, starter)
    show(to_json(content) if context.options["json"] else as_text(content))
    if broken is not None:
        raise broken


def _plugins(context: Context, words: Sequence[str]) -> None:
    from elastic_core.cli import show, to_json
    from elastic_core.hooks import listing

    plan: Any = context.plan
    show(to_json(listing.as_dict(plan.manager)) if context.options["json"] else listing.as_text(plan.manager))


def _status(context: Context, words: Sequence[str]) -> None:
    from elastic_core.cli import show, to_json
    from elastic_core.operate.status import as_dict, as_text, status

    snapshot = status(_plan(context), context.options["timeout"])
    show(to_json(as_dict(snapshot)) if context.options["json"] else as_text(snapshot))


def _drain(context: Context, words: Sequence[str]) -> None:
    from elastic_core.cli import show
    from elastic_core.operate.drain import drain

    drain(_plan(context), words[0], context.options["timeout"], show, deadline=context.options["deadline"])


def _stop(context: Context, words: Sequence[str]) -> None:
    from elastic_core.cli import show
    from elastic_core.operate.drain import stop

    stop(_plan(context), context.options["timeout"], show, deadline=context.options["deadline"])


def _serve(context: Context, words: Sequence[str]) -> None:
    from elastic_core.operate.serve import serve, serving_endpoint

    plan = _plan(context)
    with plan.naming_origins():
        endpoint = serving_endpoint(plan.settings.rdzv_endpoint)
        serve(plan.store_server(endpoint, max(plan.settings.nnodes.max, _ROOM)))


_RECORDS = (
    CommandRecord(
        "explain",
        COMMANDS["explain"],
        _explain,
        (_JSON,),
        like_run=True,
        about="""\
Shows the configuration that elastic run would use with the same flags, variables and config file, and
the origin of each value. No workers are started. For the flags, see elastic run --help.""",
        example="elastic explain --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py",
        codes={
            ExitCode.SUCCESS: "the configuration is valid",
            ExitCode.BAD_CONFIGURATION: "the configuration is invalid, or the script does not exist; every problem is "
            "listed",
        },
    ),
    CommandRecord(
        "plugins",
        COMMANDS["plugins"],
        _plugins,
        (_JSON,),
        settings=None,
        about="Lists the installed plugins and what each provides, and explains why any of them failed to load.",
        codes={ExitCode.SUCCESS: "the plugins were listed, even if some failed to load"},
    ),
    CommandRecord(
        "status",
        COMMANDS["status"],
        _status,
        (_JSON, Option("timeout", float, ANSWER, "how long to wait for the store to answer", "seconds", above=0)),
        settings=_JOB,
        about="""\
Shows a running job without joining or changing it: the round, its members and their last heartbeats,
waiting and missing nodes, and why the last round ended. To see every node's heartbeat, the command
watches the job for slightly longer than the heartbeat interval, or longer if a heartbeat is late.""",
        example="elastic status --rdzv-endpoint node0:29400 --rdzv-id job7",
        codes={
            ExitCode.SUCCESS: "the job was shown, whatever its state",
            ExitCode.STORE_UNREACHABLE: "the store does not answer",
            ExitCode.NOT_FOUND: "no job with this id has used this endpoint",
        },
        required=_NEEDED,
    ),
    CommandRecord(
        "drain",
        COMMANDS["drain"],
        _drain,
        (_DEADLINE, _patience("node")),
        settings=_JOB,
        operands=("NODE",),
        about="""\
Asks one node to leave the job, and waits until it has left. The node stops its workers, and its
agent exits with code 9 (code 0 if none of its workers has run, or if all have succeeded). The other
nodes continue without it. NODE is a node's id, or a host name or rank that matches exactly one
node.""",
        example="elastic drain node3 --rdzv-endpoint node0:29400 --rdzv-id job7",
        codes={
            ExitCode.SUCCESS: "the node has left; with --timeout=0, it was asked to leave",
            ExitCode.RENDEZVOUS_TIMEOUT: "the node was asked to leave, but did not leave in time",
            ExitCode.STORE_UNREACHABLE: "the store does not answer",
            ExitCode.NOT_FOUND: "no such node, or no job with this id",
        },
        required=_NEEDED,
    ),
    CommandRecord(
        "stop",
        COMMANDS["stop"],
        _stop,
        (_DEADLINE, _patience("nodes")),
        settings=_JOB,
        about="""\
Asks all nodes to leave the job, and waits until they have left. Workers that call
elastic_core.should_stop save a checkpoint after the same step; other workers get SIGTERM. Each agent
exits with code 9 (code 0 if none of its workers has run, or if all have succeeded). To continue the
job, run its elastic run command again.""",
        example="elastic stop --rdzv-endpoint node0:29400 --rdzv-id job7",
        codes={
            ExitCode.SUCCESS: "the nodes have left; with --timeout=0, they were asked to leave",
            ExitCode.RENDEZVOUS_TIMEOUT: "the nodes were asked to leave, but some did not leave in time",
            ExitCode.STORE_UNREACHABLE: "the store does not answer, or it stopped and some nodes were not seen to "
            "leave",
            ExitCode.NOT_FOUND: "no job with this id, or no node in it",
        },
        required=_NEEDED,
    ),
    CommandRecord(
        "serve",
        COMMANDS["serve"],
        _serve,
        settings={
            "rdzv_backend": f"backend whose store is served; by default {compat.BACKEND}",
            "rdzv_endpoint": "address to serve on, or only a port, which means all addresses of this machine",
            "nnodes": f"number of nodes that the store must support; values below {_ROOM} are raised to {_ROOM}",
        },
        about="""\
Hosts a rendezvous store for jobs in a separate process, outside the training nodes, until it
receives SIGTERM or SIGINT.""",
        example="elastic serve --rdzv-endpoint :29400",
        codes={
            ExitCode.SUCCESS: "stopped by a signal",
            ExitCode.BAD_CONFIGURATION: "the port is in use, or the endpoint is not an address of this machine",
        },
        required={"rdzv_endpoint": "elastic serve requires --rdzv-endpoint=[HOST:]PORT"},
    ),
)
BUILT_IN = {record.name: record for record in _RECORDS}
"""The commands by name."""
