"""A TCPStore. Prints its port, and exits at the end of standard input."""

from __future__ import annotations

import resource
import sys

from torch.distributed import TCPStore


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
