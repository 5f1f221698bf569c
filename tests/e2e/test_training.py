"""Real torch: an unmodified DDP script, killed workers, and torch's own `@record`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

TRAIN = str(Path(__file__).parents[2] / "examples" / "digits" / "train.py")
# Python imports it at startup. The first start never completes its third checkpoint, so the victim still runs when it
# is killed.
HOLDS = """
import os, time

replace = os.replace
saved = []


def held(source, target, **more):
    if str(target).endswith(".pt") and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        saved.append(target)
        if len(saved) > 2:
            time.sleep(600)
    replace(source, target, **more)


os.replace = held
"""


def test_killed_worker_costs_one_restart(elastic):
    (elastic.cwd / "holding").mkdir()
    elastic.script("holding/sitecustomize.py", HOLDS)
    process = elastic.start(
        "run", "--nproc-per-node=2", "--max-restarts=3", "--result-file=result.json", TRAIN,
        "--checkpoint=checkpoint.pt", "--epochs=8", "--metrics=metrics.json", PYTHONPATH=str(elastic.cwd / "holding"),
    )  # fmt: skip
    victim = None
    out = []
    for line in process.stdout:
        out.append(line)
        if line.startswith("rank 1 is process") and victim is None:
            victim = int(line.split()[-1])
        if line.startswith("epoch 2/"):
            os.kill(victim, signal.SIGKILL)
            break
    done = elastic.finish(process, timeout=100)
    assert done.code == 0
    assert "killed by SIGKILL" in done.err
    assert "restart 1" in done.out  # the epochs after the kill
    result = json.loads((elastic.cwd / "result.json").read_text())
    assert result["restart_count"] == 1
    assert [failure["global_rank"] for failure in result["failures"] if failure["caused_by"] is None] == [1]
    assert json.loads((elastic.cwd / "metrics.json").read_text())["accuracy"] >= 95


def test_torchs_record_writes_the_error_file(elastic):
    script = elastic.script(
        "recorded.py",
        """
        import os, time
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            if os.environ["RANK"] == "1":
                raise RuntimeError("raised under record")
            time.sleep(600)

        main()
        """,
    )
    done = elastic.run("--nproc-per-node=2", "--log-dir=logs", "--rdzv-id=job", "--result-file=result.json", script)
    assert done.code == 1
    assert "error file" in done.err
    assert "RuntimeError: raised under record" in done.err
    first = json.loads((elastic.cwd / "result.json").read_text())["first_failure"]
    assert first["error_file_data"]["message"]["message"] == "RuntimeError: raised under record"
    assert Path(first["error_file"]).name == "rank-1.error.json"


def test_torchs_logs_specs_set_the_paths(elastic):
    """Rank 1 fails only after rank 0 has printed; otherwise rank 0 may be stopped before it prints anything."""
    script = elastic.script(
        "talk.py",
        "import os, sys, time; r = os.environ['RANK']\n"
        "while r == '1' and not os.path.exists('said'): time.sleep(0.01)\n"
        "print('out', r, flush=True); print('err', r, file=sys.stderr); open('said', 'w').close(); sys.exit(int(r))\n",
    )
    done = elastic.run(
        "--nproc-per-node=2", "--logs-specs=default", "-r", "3", "-t", "1:1", "--log-dir=logs", "--rdzv-id=job", script
    )
    assert done.code == 1
    (attempt,) = (elastic.cwd / "logs").glob("job_*/attempt_0")
    assert (attempt / "0" / "stdout.log").read_text() == "out 0\n"
    assert (attempt / "1" / "stderr.log").read_text() == "err 1\n"
    assert done.out == "[default1]:out 1\n"
    assert "err 1" in done.err[done.err.index("elastic: ") :]
