"""Who may ask. Pure."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from elastic_core.support.addresses import ip_address

if TYPE_CHECKING:
    from collections.abc import Mapping


def may_see(token: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a request carries the token, where there is one. How long that takes tells nothing of the token."""
    if token is None:
        return True
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def means_loopback(headers: Mapping[str, str]) -> bool:
    """Whether a request to a loopback address is addressed to one. A page from elsewhere whose name was made to lead
    here (DNS rebinding) is not: browsers tell that name. Programs that speak HTTP/1.0 need not tell any."""
    name = _host(headers.get("host", "localhost"))
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def is_loopback(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    return found is not None and found.is_loopback


def _host(header: str) -> str:
    """The host of a `Host` header, in lower case, without port and brackets."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header
