"""`EtcdStore`: a `torch.distributed.Store` in etcd. Its first use imports torch."""

from typing import TYPE_CHECKING

from elastic_core.plugin import lazy_names

if TYPE_CHECKING:
    from elastic_etcd.store.torch_store import EtcdStore

__all__ = ["EtcdStore"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {"elastic_etcd.store.torch_store": "EtcdStore"})
