"""A worker that prints its ranks and the device on which it has computed, as JSON: `python device.py cuda|cpu`."""

from __future__ import annotations

import json
import os
import sys


def main(kind: str) -> None:
    """Compute a sum on the GPU of this worker's local rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    facts: dict[str, object] = {"local_rank": local_rank, "world_size": int(os.environ["WORLD_SIZE"])}
    if kind == "cuda":
        import torch

        numbers = torch.ones(8, device=f"cuda:{local_rank}")
        facts |= {"sum": float(numbers.sum()), "device": str(numbers.device)}
    os.write(1, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1])
