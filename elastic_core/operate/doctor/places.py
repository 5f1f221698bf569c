"""Where the nodes of a run meet, as far as the core can read an endpoint: hosts and ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.support.addresses import ip_address, joined_host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORTS: Mapping[str, int] = {
    "c10d": 29400,
    "static": 29500,
    **dict.fromkeys(("etcd", "etcd-v2", "etcd-v3", "etcd-legacy"), 2379),
}
"""Of the backends that are ours. Their endpoints are hosts; a stranger's may be anything."""


@dataclass(frozen=True)
class Place:
    """One host of an endpoint, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return joined_host_port(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether it is written so that it can only be this machine, whichever one reads it."""
        address = ip_address(self.host)
        return self.host.lower() in ("localhost", "ip6-localhost") or (address is not None and address.is_loopback)


def places_of(backend: str, endpoint: str, conf: Mapping[str, str]) -> tuple[Place, ...]:
    """The hosts of an endpoint; none if it is a file or the like.

    Raises:
        ValueError: the backend is one of ours, and this cannot be an endpoint of it.
    """
    if not endpoint.strip() or conf.get("store_type", conf.get("store-type")) == "file":
        return ()
    port = DEFAULT_PORTS.get(backend)
    try:
        parts = [part.strip().partition("://")[2] or part.strip() for part in endpoint.split(",")]
        found = [split_host_port(part.removesuffix("/"), port or 0, part_of=endpoint) for part in parts]
    except ValueError:
        if port is None:
            return ()
        raise
    if port is None and not all(number for _, number in found):
        return ()  # a stranger's, whose default we do not know; it may be a name of anything
    return tuple(dict.fromkeys(Place(*item) for item in found))
