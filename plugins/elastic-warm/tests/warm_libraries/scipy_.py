"""Statistics, optimization and linear algebra."""

import probe

import numpy
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.stats

probe.imported("scipy")
generator = numpy.random.default_rng(4)
matrix = generator.random((20, 20))
probe.result("eigenvalues", abs(scipy.linalg.eigvals(matrix)).round(9).sum())
probe.result("minimum", scipy.optimize.minimize(scipy.optimize.rosen, [1.3, 0.7, 0.8]).x.round(6).tolist())
probe.result("sparse", scipy.sparse.random(30, 30, density=0.1, random_state=2).sum())
probe.random("normal", scipy.stats.norm.rvs())
probe.end()
