"""The older rendezvous protocol, over etcd's v3 API. Importing this package does not import torch, grpc or etcd3.

It exports every name of `torchelastic.rendezvous` in the first torchelastic release.
"""

from typing import TYPE_CHECKING

from elastic_core.plugin import lazy_names

if TYPE_CHECKING:
    from elastic_core.plugin import RendezvousHandler, RendezvousParameters
    from elastic_etcd_legacy.aliases import (
        RendezvousClosedException,
        RendezvousException,
        RendezvousHandlerFactory,
        RendezvousNonRetryableError,
        RendezvousTimeoutException,
    )
    from elastic_etcd_legacy.create import create_rdzv_handler
    from elastic_etcd_legacy.handler import EtcdRendezvousHandler

__all__ = [
    "EtcdRendezvousHandler",
    "RendezvousClosedException",
    "RendezvousException",
    "RendezvousHandler",
    "RendezvousHandlerFactory",
    "RendezvousNonRetryableError",
    "RendezvousParameters",
    "RendezvousTimeoutException",
    "create_rdzv_handler",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)
