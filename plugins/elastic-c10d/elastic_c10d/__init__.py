"""Rendezvous over torch's stores, for elastic-core. Importing this package does not import torch."""

from typing import TYPE_CHECKING

from elastic_core.plugin import lazy_names

if TYPE_CHECKING:
    from elastic_c10d.create import C10dRendezvousBackend, create_backend
    from elastic_c10d.server import StoreServer

__all__ = ["C10dRendezvousBackend", "StoreServer", "create_backend"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)
