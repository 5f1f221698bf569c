"""What etcd takes at once, with its default flags; checked here, since its own words do not say what was too much."""

from __future__ import annotations

from elastic_etcd.client.values import Put, Transaction

OPERATIONS = 128
"""In each of the three lists of a transaction."""

REQUEST_BYTES = 1536 * 1024
"""1.5 MiB: the value of a key, and all of a request."""

_ENVELOPE = 512
"""Bytes that the server adds before it looks at the size."""


def check(transaction: Transaction, size: int) -> None:
    """Raises ValueError: there are too many conditions or operations, a value is too large, or all together are.

    Args:
        size: of the transaction as it will be sent, in bytes.
    """
    if max(map(len, transaction)) > OPERATIONS:
        _check_operations(transaction)
    if size > REQUEST_BYTES - _ENVELOPE:
        _check_values(transaction)
        raise ValueError(f"expected at most 1.5 MiB ({REQUEST_BYTES} bytes) in a request, found {size}; split it")


def _check_operations(transaction: Transaction) -> None:
    for name, part in zip(Transaction._fields, transaction, strict=True):
        if len(part) > OPERATIONS:
            raise ValueError(f"expected at most {OPERATIONS} in `{name}` of a transaction, found {len(part)}; split it")


def _check_values(transaction: Transaction) -> None:
    for operation in (*transaction.then, *transaction.otherwise):
        if isinstance(operation, Put) and len(operation.value) > REQUEST_BYTES - _ENVELOPE:
            raise ValueError(
                f"expected a value of at most 1.5 MiB ({REQUEST_BYTES} bytes), found one of {len(operation.value)} for "
                f"{operation.key!r}; keep large data elsewhere and its place here"
            )
