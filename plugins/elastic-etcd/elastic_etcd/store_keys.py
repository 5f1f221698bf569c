"""Where the keys of a store are in etcd, and how much fits."""

from __future__ import annotations

from elastic_etcd.client.values import end_of

MOST_OPERATIONS = 120
"""In one transaction. etcd's limit is 128, and what makes a write count once needs a few."""
MOST_BYTES = 1536 * 1024 - 4096
"""In one request: etcd's limit of 1.5 MiB, less room for what is around keys and values."""


class StoreKeys:
    """The keys of one store, all under its prefix: `k/` holds what users see, `q/` queues, `w/` notes of the writers.

    Args:
        prefix: of all keys, as text; slashes at its ends do not count.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = f"/{prefix.strip('/')}/".encode() if prefix.strip("/") else b"/"
        self.data = self.prefix + b"k/"
        self.data_end = end_of(self.data)
        self.writers = self.prefix + b"w/"
        self._queues = self.prefix + b"q/"

    def of(self, key: str) -> bytes:
        """Where the value of the user's key is."""
        return self.data + key.encode()

    def name(self, key: bytes) -> str:
        """The user's key; the inverse of `of`."""
        return key[len(self.data) :].decode(errors="replace")

    def queue(self, key: str) -> bytes:
        """What the items of a queue begin with. The length keeps a queue apart from those whose names begin alike."""
        name = key.encode()
        return b"%s%d/%s/" % (self._queues, len(name), name)


def expect_small(*parts: bytes) -> None:
    """Raises ValueError when these keys and values are too much for one request."""
    size = sum(map(len, parts))
    if size > MOST_BYTES:
        raise ValueError(
            f"expected keys and values of at most {MOST_BYTES} bytes in one write, as etcd takes them, found {size}; "
            "keep large data elsewhere and its place here"
        )
