"""Agents that agree on a common step: FIRST SIZE PORT COUNT. Each of the SIZE agents from rank FIRST on is a thread
with its own connection to the TCPStore at PORT, which COUNT agents share. Prints "ready", waits for a line with a time,
lets all begin then, and prints when the last of them knew the step."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore

from elastic_core.agent.stopping import agree

LIMIT_S = 120.0

if __name__ == "__main__":
    first, size, port, count = map(int, sys.argv[1:])
    sys.setswitchinterval(0.1)  # as in the benchmark `rendezvous`
    stores = [
        TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S))
        for _ in range(size)
    ]
    known: list[tuple[int | None, float]] = []

    def agent(store: TCPStore, rank: int, begin: float) -> None:
        """Agree, and note when the step is known."""
        time.sleep(max(begin - time.monotonic(), 0.0))
        step = agree(store, rank, range(count), 100 + rank, multiple=1, patience=LIMIT_S)
        known.append((step, time.monotonic()))

    print("ready", flush=True)
    begin = float(input())
    threads = [threading.Thread(target=agent, args=(store, first + place, begin)) for place, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {step for step, _ in known} == {100 + count}, known
    print(max(at for _, at in known), flush=True)
