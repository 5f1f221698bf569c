"""Rendezvous over torch's stores, for elastic-core. Importing this does not import torch."""

from elastic_c10d.backend import C10dRendezvousBackend

__all__ = ["C10dRendezvousBackend"]
