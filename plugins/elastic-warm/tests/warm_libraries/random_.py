"""Unseeded generators of Python and numpy, and random values from the kernel."""

import os
import random
import secrets
import tempfile
import uuid

import probe

import numpy
import numpy.random

probe.imported("numpy")
probe.random("random", random.random())
probe.random("numpy", numpy.random.rand())
probe.random("numpy, new", numpy.random.default_rng().random())
probe.random("kernel", os.urandom(8).hex())
probe.random("secrets", secrets.token_hex(8))
probe.random("uuid1", str(uuid.uuid1()))
probe.random("uuid4", str(uuid.uuid4()))
with tempfile.NamedTemporaryFile() as file:
    probe.random("temporary", os.path.basename(file.name))
random.seed(5)
probe.result("seeded", random.random())
probe.end()
