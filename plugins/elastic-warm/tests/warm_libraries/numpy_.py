"""Linear algebra over threads, files in memory, and the generators."""

import probe

import numpy

probe.imported("numpy")
generator = numpy.random.default_rng(7 + probe.RANK)
square = generator.standard_normal((96, 96))
probe.result("solved", float(numpy.linalg.solve(square, numpy.ones(96)).sum()))
probe.result("singular", float(numpy.linalg.svd(square, compute_uv=False)[0]))
probe.result("transformed", float(abs(numpy.fft.rfft(square[0])).sum()))
numpy.random.seed(3)
probe.result("seeded", numpy.random.rand(2).tolist())
path = f"{probe.folder()}/array.npy"
numpy.save(path, square)
probe.result("mapped", float(numpy.load(path, mmap_mode="r").sum()))
with numpy.errstate(all="warn"):
    numpy.float64(1) / numpy.float64(0)  # a warning on stderr
probe.end()
