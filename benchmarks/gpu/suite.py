"""Run the parts of the suite, each in its own process, and record their results.

The JSON has `suite`, which is "gpu", and `parts`. For each part it has the `outcome` and the reason (`why`), the
`device`, whether it was a `rehearsal`, its duration in `seconds`, facts about the `machine`, and the `report`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.campaign import commit
from benchmarks.gpu import device
from benchmarks.gpu.checkout import ROOT
from benchmarks.gpu.load import Skipped
from benchmarks.gpu.parts import PARTS
from benchmarks.job import BenchmarkError
from benchmarks.processes import adopt_orphans, end_descendants
from benchmarks.report import Report, machine_facts

END_LIMIT_S = 45.0
"""Time for a part to stop its processes after SIGTERM."""

BAD = ("failed", "broken", "timed out")


def run(names: Sequence[str], arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run these parts one after the other. Each of them gets the arguments `words`."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = device.facts()
    print(f"GPUs: {', '.join(gpu['name'] for gpu in found['gpus']) or 'none'}", flush=True)
    content = kept(arguments.json)
    ended: dict[str, str] = {}
    for name in names:
        record = conducted(name, arguments, words, found)
        ended[name] = record["outcome"]
        content["parts"][name] = record
        write(content, arguments.json)
        why = f": {record['why']}" if record["why"] else ""
        print(f"{name}: {record['outcome']}{why} ({record['seconds']:.0f} s)", flush=True)
    print("\n" + ", ".join(f"{name} {outcome}" for name, outcome in ended.items()))
    return int(any(outcome in BAD for outcome in ended.values()))


def conducted(
    name: str, arguments: argparse.Namespace, words: Sequence[str], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Run one part in a process, and record its outcome. `found` is the result of `device.facts`."""
    gpus = len(found["gpus"])
    needs_gpu = PARTS[name].needs_gpu
    used = arguments.device if needs_gpu else "none"
    record = {
        "outcome": "skipped",
        "why": device.why_none(found),
        "device": used,
        "rehearsal": used == "cpu",
        "seconds": 0.0,
        "machine": {**machine_facts(), **found, "commit": commit()},
        "report": None,
    }
    if used == "cuda" and not gpus:
        return record
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="elastic-gpu-") as folder:
        path = Path(folder) / "part.json"
        print(f"\n{name}{': a rehearsal on the processor' * (used == 'cpu')}", flush=True)
        in_time = ran(name, words, gpus if used != "cpu" else 0, path, arguments.limit)
        made = json.loads(path.read_text()) if path.exists() else {}
    record |= {"seconds": time.monotonic() - begun, "report": made.get("report")}
    record["outcome"], record["why"] = verdict(made, in_time, arguments.limit)
    return record


def ran(name: str, words: Sequence[str], gpus: int, path: Path, limit_s: float) -> bool:
    """Run one part. Returns whether it ended in time; if not, terminates it, and then kills it and its descendants."""
    command = [sys.executable, "-m", "benchmarks.gpu", *words, f"--one={name}", f"--out={path}", f"--gpus={gpus}"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.terminate()  # does nothing to a process that has been reaped
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        process.kill()
        process.wait()
        end_descendants()


def verdict(made: Mapping[str, Any], in_time: bool, limit_s: float) -> tuple[str, str]:
    """The outcome of a part, and the reason. `made` is the content of its file, or empty."""
    if made.get("skipped"):
        return "skipped", made["skipped"]
    rows = made["report"]["rows"] if made.get("report") else []
    not_met = [row["what"] for row in rows if row["met"] is False]
    if not in_time:
        return "timed out", f"after {limit_s:g} s; its rows until then are kept"
    if made.get("error") or not made:
        return "broken", made.get("error", "it wrote nothing")
    return ("failed", f"not met: {'; '.join(not_met)}") if not_met else ("passed", "")


def run_one(name: str, arguments: argparse.Namespace) -> int:
    """Run one part in this process: measure, print, and write the results so far when it ends or is terminated."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    used = {"cuda": "cuda", "cpu": "cpu (a rehearsal, no figures of a GPU)"}[arguments.device]
    report = Report(f"gpu {name}", {"device": used} if PARTS[name].needs_gpu else {})
    made: dict[str, Any] = {}
    try:
        PARTS[name].measure(arguments, report)
    except Skipped as reason:
        made["skipped"] = str(reason)
    except BenchmarkError as error:
        made["error"] = str(error)
        print(f"error: {name}: {error}", file=sys.stderr)
    except Exception as error:
        made["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants()
        made["report"] = report.as_dict() if report.rows else None
        arguments.out.write_text(json.dumps(made))
        if report.rows:
            report.print()
    return 0


def kept(path: Path | None) -> dict[str, Any]:
    """The content of the file, if an earlier run has written it."""
    if path and path.exists():
        content = json.loads(path.read_text())
        if content.get("suite") == "gpu":
            return dict(content)
    return {"suite": "gpu", "parts": {}}


def write(content: Mapping[str, Any], path: Path | None) -> None:
    """Write the file atomically, so that an interrupted run leaves it intact."""
    if path is not None:
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(part, path)
