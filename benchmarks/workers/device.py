"""A worker that prints as JSON which it is, and on which device it has computed: `python device.py cuda|cpu`."""

from __future__ import annotations

import json
import os
import sys


def main(kind: str) -> None:
    """A sum, on the GPU of this worker's local rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    facts: dict[str, object] = {"local_rank": local_rank, "world_size": int(os.environ["WORLD_SIZE"])}
    if kind == "cuda":
        import torch

        numbers = torch.ones(8, device=f"cuda:{local_rank}")
        facts |= {"sum": float(numbers.sum()), "device": str(numbers.device)}
    os.write(1, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1])
