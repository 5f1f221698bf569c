"""The smallest worker: no torch, no waiting. What is left to measure is the launcher."""

import os

print(f"hello from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
