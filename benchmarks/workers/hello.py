"""A minimal worker without torch, so that only the launcher is measured."""

import os

print(f"hello from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
