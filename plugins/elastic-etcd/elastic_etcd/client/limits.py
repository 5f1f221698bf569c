"""What etcd takes at once, with its default flags; checked here, since its own words do not say what was too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_etcd.client.values import Put

if TYPE_CHECKING:
    from elastic_etcd.client.values import Transaction

OPERATIONS = 128
"""In each of the three lists of a transaction."""

REQUEST_BYTES = 1536 * 1024
"""1.5 MiB: the value of a key, and all of a request."""

_ENVELOPE = 512
"""Bytes that the server adds before it looks at the size."""


def check_operations(transaction: Transaction) -> None:
    """Raises ValueError: there are too many conditions or operations, or a value is too large."""
    parts = {"conditions": transaction.conditions, "then": transaction.then, "otherwise": transaction.otherwise}
    for name, part in parts.items():
        if len(part) > OPERATIONS:
            raise ValueError(f"expected at most {OPERATIONS} in `{name}` of a transaction, found {len(part)}; split it")
    for operation in (*transaction.then, *transaction.otherwise):
        if isinstance(operation, Put) and len(operation.value) > REQUEST_BYTES - _ENVELOPE:
            raise ValueError(
                f"expected a value of at most 1.5 MiB ({REQUEST_BYTES} bytes), found one of {len(operation.value)} for "
                f"{operation.key!r}; keep large data elsewhere and its place here"
            )


def check_size(request: Any) -> None:
    """Raises ValueError: the whole request is too large."""
    size = request.ByteSize()
    if size > REQUEST_BYTES - _ENVELOPE:
        raise ValueError(f"expected at most 1.5 MiB ({REQUEST_BYTES} bytes) in a request, found {size}; split it")
