"""A figure drawn by Agg, and its pixels."""

import os
import zlib

os.environ["MPLBACKEND"] = "agg"

import probe

import matplotlib
import matplotlib.pyplot as pyplot
import numpy

probe.imported("matplotlib")
probe.variable("backend", matplotlib.get_backend())
figure, axes = pyplot.subplots()
axes.plot(numpy.linspace(0, 1, 50) ** (2 + probe.RANK))
axes.set_title("rank")
figure.savefig(f"{probe.folder()}/figure.pdf")
figure.canvas.draw()
probe.result("pixels", zlib.crc32(numpy.asarray(figure.canvas.buffer_rgba()).tobytes()))
probe.result("open", pyplot.get_fignums())
probe.end()
