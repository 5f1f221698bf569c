"""The older rendezvous protocol over etcd's v3 API. Importing this imports neither torch nor grpc nor etcd3.

The names of the first torchelastic's `torchelastic.rendezvous` are all here.
"""

from elastic_core.rendezvous import RendezvousHandler, RendezvousParameters
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
