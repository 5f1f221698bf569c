"""Compiled functions, one of them with threads."""

import probe

import numba
import numpy

probe.imported("numba")


@numba.njit
def total(values):
    result = 0.0
    for value in values:
        result += value * value
    return result


@numba.njit(parallel=True)
def scaled(values):
    result = numpy.empty_like(values)
    for place in numba.prange(len(values)):
        result[place] = values[place] * 2
    return result


@numba.njit
def drawn():
    return numpy.random.random()


values = numpy.arange(1000.0) + probe.RANK
probe.result("total", total(values))
probe.result("scaled", scaled(values).sum())
probe.variable("threads", [numba.get_num_threads(), numba.threading_layer()])
probe.random("compiled", drawn())
probe.end()
