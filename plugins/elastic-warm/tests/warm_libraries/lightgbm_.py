"""Boosted trees, with OpenMP threads."""

import probe

import lightgbm
import numpy

probe.imported("lightgbm")
generator = numpy.random.default_rng(3)
inputs = generator.random((200, 5))
targets = inputs @ numpy.arange(5) + generator.normal(0, 0.1, 200)
settings = {"objective": "regression", "verbose": -1, "deterministic": True, "num_threads": 2, "seed": 1}
model = lightgbm.train(settings, lightgbm.Dataset(inputs, targets), num_boost_round=5)
probe.result("predicted", [round(one, 6) for one in model.predict(inputs[:5])])
probe.end()
