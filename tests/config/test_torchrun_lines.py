"""Generated lines, read by torchrun's own code and by ours: the same meaning, or a sentence of the page."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from beside_torchrun import PAGE, REFUSED, Ours, RefusedLine, Theirs, combinations, unexplained

from elastic_core.errors import ConfigurationError
from elastic_core.support.addresses import without_brackets

pytestmark = pytest.mark.torch

ANYWHERE = None
"""On one node: a port that is free."""


@dataclass(frozen=True)
class Difference:
    """A difference of meaning, and what the page says of it. `among` tells whether it is this one."""

    of: str
    among: Callable[[Theirs, Ours], bool]
    sentence: str


def found_at(theirs: Theirs) -> object:
    """Where the nodes meet, as torchrun has it."""
    handler = theirs.spec.rdzv_handler
    host, port = (
        (theirs.store["host"], theirs.store["port"]) if theirs.store else (handler.master_addr, handler.master_port)
    )
    return ANYWHERE if port == 0 else (host, port)


def meets_at(ours: Ours) -> object:
    """Where ours meet."""
    from elastic_c10d.endpoint import parse_endpoint
    from elastic_etcd.parameters import parse_endpoints

    settings, options = ours.settings, ours.options
    if settings.rdzv_backend == "local":
        host, port = without_brackets(options["master_addr"] or "127.0.0.1"), options["master_port"]
        return (host, port) if port else ANYWHERE
    if options.get("store_type", "tcp").lower() == "file":
        return settings.rdzv_endpoint, None
    if not settings.rdzv_endpoint:
        return ANYWHERE
    if settings.rdzv_backend.startswith("etcd"):
        (found,) = parse_endpoints(settings.rdzv_endpoint)
        return found.host, found.port
    endpoint = parse_endpoint(settings.rdzv_endpoint, least_port=0)
    return (endpoint.host, endpoint.port) if endpoint.port else ANYWHERE


def their_options(theirs: Theirs) -> dict[str, object]:
    """The options that count for torchrun, typed."""
    handler, store = theirs.spec.rdzv_handler, theirs.store
    if not store:
        return {"timeout": handler.timeout.total_seconds()}
    found: dict[str, object] = {}
    if hasattr(handler, "settings"):  # a dynamic one
        times = handler.settings.timeout
        found = {f"{name}_timeout": getattr(times, name).total_seconds() for name in ("join", "last_call", "close")}
        found["heartbeat_timeout"] = times.heartbeat.total_seconds()
        found["keep_alive_interval"] = handler.settings.keep_alive_interval.total_seconds()
        found["keep_alive_max_attempt"] = handler.settings.keep_alive_max_attempt
    if store["port"] is None:
        return {**found, "store_type": "file"}
    if "is_master" in store:
        found |= {"store_type": "tcp", "is_host": store["is_master"], "read_timeout": store["timeout"].total_seconds()}
    else:
        found |= {"protocol": store["protocol"], "read_timeout": store.get("read_timeout")}
    return {name: value for name, value in found.items() if value is not None}


def compared(theirs: Theirs, ours: Ours) -> dict[str, tuple[object, object]]:
    """Theirs and ours of everything that may differ."""
    fixed = not theirs.store
    nodes = (theirs.config.max_nodes if fixed else theirs.config.min_nodes, theirs.config.max_nodes)
    found: dict[str, tuple[object, object]] = {
        "nodes": (nodes, (ours.settings.nnodes.min, ours.settings.nnodes.max)),
        "where": (found_at(theirs), meets_at(ours)),
        "id": (theirs.args.rdzv_id != "none" and not theirs.args.standalone and theirs.args.rdzv_id, given_id(ours)),
    }
    named = {key.lower().replace("-", "_"): key for key in ours.settings.rdzv_conf}
    for name, value in their_options(theirs).items():
        if named.get(name) == name and name in ours.options:
            own = ours.options[name]
            found[f"option {name}"] = value, own.lower() if isinstance(own, str) else own
    if ours.settings.rdzv_backend == "static":
        found["rank"] = theirs.args.node_rank, ours.settings.node_rank
    return found


def given_id(ours: Ours) -> object:
    """The id, unless it was made up."""
    known = ours.settings.rdzv_id
    return False if known == "none" or re.fullmatch("[0-9a-f]{16}", known or "") else known


def one_node(ours: Ours) -> bool:
    return ours.settings.nnodes.max == 1


def in_a_file(theirs: Theirs) -> bool:
    """With the name `localhost:0`, if torchrun has chosen the endpoint."""
    return theirs.store.get("port", 0) is None


def not_named(theirs: Theirs, ours: Ours) -> bool:
    return theirs.args.rdzv_backend == "static" and bool(ours.settings.rdzv_endpoint) and not ours.settings.standalone


DIFFERENT = [
    Difference("nodes", lambda theirs, ours: theirs.args.standalone, "`--nnodes 1:4` becomes 1"),
    Difference("where", lambda theirs, ours: theirs.args.standalone and in_a_file(theirs), "neither torch nor a store"),
    Difference(
        "where",
        lambda theirs, ours: not theirs.args.rdzv_endpoint and in_a_file(theirs),
        "`local` for one node without an endpoint",
    ),
    Difference("nodes", not_named, "An endpoint without a backend means `c10d`"),
    Difference(
        "where",
        lambda theirs, ours: not_named(theirs, ours) and ours.options.get("store_type", "").lower() == "file",
        "An endpoint without a backend means `c10d`",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend == "static" and ours.settings.rdzv_endpoint.endswith(":29500"),
        "stays `static` for one node, at port 29500",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend == "c10d" and not ours.settings.rdzv_endpoint,
        "and so is no endpoint (torchrun: 29400)",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend.startswith("etcd") and not ours.settings.rdzv_endpoint,
        "starts an etcd of its own (torchrun: `localhost:2379`)",
    ),
    Difference(
        "where",
        lambda theirs, ours: re.fullmatch(r"(?:[^:]*:){2,}[^:\]]*", ours.settings.rdzv_endpoint) is not None,
        "a port after an IPv6 address needs them",
    ),
    Difference(
        "rank",
        lambda theirs, ours: theirs.args.node_rank == 0 and "rank" in str(ours.settings.rdzv_conf).lower(),
        "where that is not given (torchrun: ignored on the command line)",
    ),
]


@pytest.mark.parametrize("port", [2940, 29400])
def test_generated_lines_mean_the_same(torchrun, elastic, tmp_path, port):
    known = {"port": port, "tmp": tmp_path, "name": socket.gethostname(), "rank": 0}
    wrong, count, used = [], {"torchrun refuses": 0, "we refuse": 0, "both run": 0}, set()
    for line in combinations(seed=port):
        words = [word.format(**known) for word in line]
        try:
            theirs = torchrun.read(words)
        except RefusedLine:
            count["torchrun refuses"] += 1
            continue
        try:
            ours = elastic.read(words)
        except ConfigurationError as error:
            count["we refuse"] += 1
            wrong += [f"{' '.join(words)}: {problem}" for problem in unexplained(error)]
            continue
        count["both run"] += 1
        for name, (expected, found) in compared(theirs, ours).items():
            reasons = [it for it in DIFFERENT if it.of == name and it.among(theirs, ours)]
            used.update(id(reason) for reason in reasons if expected != found)
            if expected != found and not reasons:
                wrong.append(f"{' '.join(words)}: {name}: torchrun {expected}, here {found}")
    assert not wrong, "\n".join(wrong)
    assert min(count.values()) > 100, count
    assert [it for it in DIFFERENT if id(it) not in used] == []


@pytest.mark.parametrize("sentence", sorted({each.sentence for each in (*DIFFERENT, *REFUSED)}))
def test_the_page_says_so(sentence):
    assert sentence in PAGE


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.line)
def test_torchrun_takes_what_is_refused_here(row, torchrun, elastic):
    torchrun.read(row.line.split())
    with pytest.raises(ConfigurationError) as caught:
        elastic.read(row.line.split())
    assert [str(problem) for problem in caught.value.problems if not re.search(row.problem, str(problem))] == []
