"""An etcd on a disk in memory. Prints its port, and stops at the end of standard input."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from elastic_etcd import EtcdServer

MEMORY = Path("/dev/shm")


def main() -> None:
    place = MEMORY if MEMORY.is_dir() else None
    folder = tempfile.TemporaryDirectory(prefix="elastic-benchmark-", dir=place)
    with folder, EtcdServer(data_dir=folder.name) as server:
        print(server.get_port(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
