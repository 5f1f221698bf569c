"""Takes the pictures of the status page in docs/img: `python docs/health_page.py`. Requires elastic-http-health,
selenium, pillow and Debian's chromium. The agent in the pictures is a fake; its workers are real processes that do
little."""

from __future__ import annotations

import base64
import contextlib
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_http_health.server import HttpHealthServer
from elastic_testing import FakeAgentView
from PIL import Image

from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.health import AgentPhase, AgentStatus, Recovery, RoundStatus, WorkerStatus
from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "elastic-http-health" / "tests"))

import chromium  # noqa: E402 - next to the plugin's tests

_WARM_UP = 45  # seconds in which the workers' curves grow
_BUSY = """
import random, time
share, seed = 0.02 + 0.018 * {rank}, random.Random({rank})
held = bytearray(({rank} * 9 + 60) << 20)
while True:
    until = time.monotonic() + 0.25 * max(0.0, share * (1 + seed.uniform(-0.35, 0.35)))
    while time.monotonic() < until: pass
    time.sleep(0.25)
"""
_STACK = """Thread 0x00007f3a1c2b4740 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1483 in _try_get_data
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1645 in _get_data
  File "/home/ada/digits/train.py", line 88 in next_batch
  File "/home/ada/digits/train.py", line 121 in train_epoch
  File "/home/ada/digits/train.py", line 163 in main
  File "/home/ada/digits/train.py", line 170 in <module>"""


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[int]]:
    """Run processes, each of which uses slightly more CPU time and memory than the previous one."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY.format(rank=rank)]) for rank in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(10)


def status(pids: list[int], now: float) -> AgentStatus:
    """Return the status of a job that lost a node, had a hang, and got the node back."""
    members = tuple(
        Member(f"gpu-{11 + i}", f"gpu-{11 + i}", f"10.4.0.{11 + i}", "trainer", len(pids)) for i in range(4)
    )
    ran, n = [9000, 4100, 2400, 1290], len(pids)
    begun = [now - sum(ran[i:]) for i in range(4)]
    hang = "rank 6: hang: the watchdog timer 'next batch' was not released in time"
    back = "all members have rejoined"
    lost, waits = "lost gpu-13: no heartbeat for 5 s", "gpu-13 wants to join"
    rounds = (
        RoundStatus(1, 4, 1, 4 * n, begun[0], "all 4 nodes have joined", begun[1], lost, "node lost", 8.2),
        RoundStatus(2, 3, 1, 3 * n, begun[1], "gpu-13 did not rejoin in time", begun[2], hang, "hang", 0.03),
        RoundStatus(3, 3, 1, 3 * n, begun[2], back, begun[3], waits, "membership", 0.02),
        RoundStatus(4, 4, 1, 4 * n, begun[3], back, rendezvous=0.11),
    )
    failure = ProcessFailure(
        2, 40817, -9, message="", timestamp=begun[2], global_rank=6, role="trainer", node="gpu-12", round=2,
        reason=hang.removeprefix("rank 6: "), stack=_STACK,
        stderr_tail=("step 41200 loss 1.873 lr 2.9e-4", "step 41300 loss 1.871 lr 2.9e-4"),
    )  # fmt: skip
    recoveries = (
        Recovery(2, "node lost", lost, begun[1], 5.1, 1.3, 0.03, 0.21),
        Recovery(3, "hang", hang, begun[2], 0.42, 1.1, 0.02, 0.19),
        Recovery(4, "membership", waits, begun[3], 0.01, 0.9, 0.11, 0.2),
    )
    own = tuple(WorkerStatus(rank, n + rank, pid, "running") for rank, pid in enumerate(pids))
    return AgentStatus(
        1, "llama-8b-pretrain", "gpu-12", "trainer", AgentPhase.RUNNING, begun[3], "", 4, 1, members, 1, 3, own, rounds,
        recoveries, (("hang", 1), ("membership", 1), ("node lost", 1)), failure,
    )  # fmt: skip


def shoot(opened: Any, name: str, width: int, height: int, scheme: str) -> None:
    """Save one picture of the top of the page."""
    chromium.resize(opened, width, height, phone=width < 600)
    chromium.prefer(opened, scheme)
    time.sleep(0.5)
    options = {"format": "png", "optimizeForSpeed": False}
    shot = opened.execute_cdp_cmd("Page.captureScreenshot", options)
    path = ROOT / "docs" / "img" / f"health-{name}-{scheme}.png"
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main(warm_up: float) -> None:
    with workers(4) as pids, chromium.browser() as opened:
        server = HttpHealthServer(FakeAgentView(status(pids, time.time())), 0, 30.0)
        server.start()
        try:
            chromium.resize(opened, 1280, 900)
            opened.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            opened.get(f"http://127.0.0.1:{server.port}/")
            time.sleep(warm_up)
            for scheme in ("light", "dark"):
                shoot(opened, "desktop", 1280, 900, scheme)
                shoot(opened, "phone", 390, 844, scheme)
            for entry in opened.get_log("browser"):
                print(entry["level"], entry["message"])
        finally:
            server.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else _WARM_UP)
