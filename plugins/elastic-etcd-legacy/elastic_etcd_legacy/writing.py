"""From a step to the transaction that carries it out: a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_etcd.client.values import Compare, Delete, Field, Put, Transaction, absent

from elastic_etcd_legacy.document import to_bytes
from elastic_etcd_legacy.table import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_etcd.client.values import Operation

    from elastic_etcd_legacy.keys import Keys
    from elastic_etcd_legacy.steps import Step
    from elastic_etcd_legacy.view import KeepAlive, View


def transaction(keys: Keys, view: View, step: Step, lease: int, alive: tuple[KeepAlive, int] | None) -> Transaction:
    """Write what `step` made of the document of `view`, if it is still the one that stands.

    A document that was deleted and made again has another revision, so that what was decided about the one is never
    written over the other.

    Args:
        lease: that the document is to be attached to.
        alive: what a step that confirms writes besides, and its lease.
    """
    stands = absent(keys.document) if not view.revision else Compare(keys.document, Field.MODIFIED, view.revision)
    return Transaction((stands,), tuple(_operations(keys, view, step, lease, alive)))


def _operations(
    keys: Keys, view: View, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Iterator[Operation]:
    if step.after is None:
        yield Delete(keys.document)
        return
    yield Put(keys.document, to_bytes(step.after), lease)
    if Effect.KEEP_ALIVE in step.transition.effects:
        if alive is None:
            raise ValueError("expected what a step that confirms writes as its keep-alive, found none")
        rank = step.after.participants.index(step.after.confirmed[-1])
        yield Put(keys.alive(view.version, rank), alive[0].to_bytes(), alive[1])
