"""Rendezvous over torch's stores, for elastic-core. Importing this does not import torch."""

from elastic_c10d.backend import C10dRendezvousBackend
from elastic_c10d.create import create_backend
from elastic_c10d.server import StoreServer

__all__ = ["C10dRendezvousBackend", "StoreServer", "create_backend"]
