"""Helpers that launch jobs on a single node."""

from __future__ import annotations

import signal
import sys

from elastic_core import LaunchConfig, elastic_launch

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def config(nproc_per_node=1, **fields):
    return LaunchConfig(1, 1, nproc_per_node, **{"max_restarts": 0, **fields})


def python(path, **fields):
    return elastic_launch(config(**fields), sys.executable)(path)
