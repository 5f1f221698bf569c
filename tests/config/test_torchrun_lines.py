"""Generated command lines mean the same to torchrun's code and ours, or the page documents the difference."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from beside_torchrun import PAGE, REFUSED, Ours, RefusedLine, Theirs, combinations, compared, unexplained

from elastic_core.errors import ConfigurationError

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Difference:
    """A difference in meaning, and the sentence that documents it. `among` returns whether it applies."""

    of: str
    among: Callable[[Theirs, Ours], bool]
    sentence: str


def in_a_file(theirs: Theirs) -> bool:
    """torchrun then names the store `localhost:0` if it chose the endpoint."""
    return theirs.store.get("port", 0) is None


def not_named(theirs: Theirs, ours: Ours) -> bool:
    return theirs.args.rdzv_backend == "static" and bool(ours.settings.rdzv_endpoint) and not ours.settings.standalone


DIFFERENT = [
    Difference("nodes", lambda theirs, ours: theirs.args.standalone, "`--nnodes 1:4` is treated as 1"),
    Difference("where", lambda theirs, ours: theirs.args.standalone and in_a_file(theirs), "neither torch nor a store"),
    Difference(
        "where",
        lambda theirs, ours: not theirs.args.rdzv_endpoint and in_a_file(theirs),
        "| one node, neither backend nor endpoint | `c10d` on any free port | `local` |",
    ),
    Difference("nodes", not_named, "| an endpoint, no backend | `static` | `c10d` |"),
    Difference(
        "where",
        lambda theirs, ours: not_named(theirs, ours) and ours.options.get("store_type", "").lower() == "file",
        "| an endpoint, no backend | `static` | `c10d` |",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend == "static" and ours.settings.rdzv_endpoint.endswith(":29500"),
        "| `c10d` on any free port | `static` on port 29500 |",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend == "c10d" and not ours.settings.rdzv_endpoint,
        "| `c10d` for one node, without an endpoint | port 29400 | any free port |",
    ),
    Difference(
        "where",
        lambda theirs, ours: ours.settings.rdzv_backend.startswith("etcd") and not ours.settings.rdzv_endpoint,
        "| `etcd` for one node, without an endpoint | `localhost:2379` | its own etcd server |",
    ),
    Difference(
        "where",
        lambda theirs, ours: re.fullmatch(r"(?:[^:]*:){2,}[^:\]]*", ours.settings.rdzv_endpoint) is not None,
        "an IPv6 address with a port needs brackets",
    ),
    Difference(
        "rank",
        lambda theirs, ours: theirs.args.node_rank == 0 and "rank" in str(ours.settings.rdzv_conf).lower(),
        "| `rank` (`static`) | ignored on the command line | used if `--node-rank` is not given",
    ),
]


@pytest.mark.parametrize("port", [2940, pytest.param(29400, marks=pytest.mark.nightly)])
def test_generated_lines_match_torchrun(torchrun, elastic, tmp_path, port):
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
def test_page_documents_the_difference(sentence):
    assert sentence in PAGE


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.line)
def test_torchrun_accepts_lines_rejected_here(row, torchrun, elastic):
    torchrun.read(row.line.split())
    with pytest.raises(ConfigurationError) as caught:
        elastic.read(row.line.split())
    assert [str(problem) for problem in caught.value.problems if not re.search(row.problem, str(problem))] == []
