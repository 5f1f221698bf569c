"""The section of docs/project/benchmarks.md about machines with GPUs, made from the suite's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import page

BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
NOTHING = "Nothing in this section has been measured on a GPU yet."
TITLES = {
    "heal": "A worker on a GPU is killed",
    "warm": "Warm start with CUDA",
    "count": "A worker for each GPU",
    "hangs": "Workers that hang",
    "shared": "Two workers on one GPU",
    "recovery": "Two agents: a loss or a gain",
    "rendezvous": "Rendezvous of many agents",
    "campaign": "The campaign with many parallel jobs",
}


def with_section(text: str, contents: Sequence[Mapping[str, Any]]) -> str:
    """Put the results of these files between the page's markers, in place of the section there.

    Raises:
        ValueError: the markers are missing, repeated or out of order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the page needs one '{BEGIN}' and after it one '{END}'")
    return f"{before}{BEGIN}\n\n{section(contents)}\n\n{END}{after}"


def section(contents: Sequence[Mapping[str, Any]]) -> str:
    """A table for each part that was measured, and a line that names the other parts. Rehearsals are not shown. If all
    parts were measured on the same machine, it is described once, before the tables."""
    parts = shown(contents)
    measured = {name: parts[name] for name in TITLES if figures(parts.get(name))}
    machines = [record["machine"] for record in measured.values()]
    same = len({machine({**one, "date": "", "load_before": 0}) for one in machines}) == 1
    tables = [table(name, record, alone=not same) for name, record in measured.items()]
    on_gpu = any(figures(record) and record["device"] == "cuda" for record in parts.values())
    missing: dict[str, list[str]] = {}
    for name in TITLES:
        if not figures(parts.get(name)):
            missing.setdefault(reason(parts.get(name)), []).append(f"`{name}`")
    lines = [
        *([] if on_gpu else [NOTHING]),
        *(f"Not measured ({why}): {', '.join(of)}." for why, of in missing.items()),
    ]
    return "\n\n".join([*([" ".join(lines)] if lines else []), *([machine(*machines)] if same else []), *tables])


def shown(contents: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last record of each part; records with figures take precedence."""
    found: dict[str, Mapping[str, Any]] = {}
    for content in contents:
        for name, record in content["parts"].items():
            if figures(record) or not figures(found.get(name)):
                found[name] = record
    return found


def figures(record: Mapping[str, Any] | None) -> bool:
    """Whether the record has figures to publish, which excludes a rehearsal's."""
    return bool(record and record["report"] and not record["rehearsal"])


def reason(record: Mapping[str, Any] | None) -> str:
    """Why a part has no figures."""
    if record is None:
        return "not run"
    return "rehearsed on a processor" if record["rehearsal"] else record["why"].partition("\n")[0]


def table(name: str, record: Mapping[str, Any], alone: bool = True) -> str:
    """The table of a part. `alone` adds its machine."""
    _, _, rest = page.table({**record["report"], "benchmark": name}).partition("\n")
    stopped = f"The part was stopped {record['why']}." if record["outcome"] == "timed out" else ""
    notes = " ".join(filter(None, [machine(record["machine"]) if alone else "", stopped]))
    return "\n\n".join(filter(None, [f"### {TITLES[name]}\n{rest}", notes]))


def machine(*facts: Mapping[str, Any]) -> str:
    """Describe the machines of measurements, whose facts differ only in date and load."""
    last = facts[-1]
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in last["gpus"]) or "none"
    named = (("driver", "driver"), ("CUDA", "cuda"), ("NCCL", "nccl"))
    versions = [f"{word} {last[key]}" for word, key in named if last["gpus"] and last.get(key)]
    return f"{page.facts(*facts)} GPU: {', '.join([gpus, *versions])}."
