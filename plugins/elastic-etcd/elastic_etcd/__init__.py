"""Rendezvous over etcd's v3 API."""
