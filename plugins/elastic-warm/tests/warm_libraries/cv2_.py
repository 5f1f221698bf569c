"""Images blurred by OpenCV, with its own threads."""

import probe

import cv2
import numpy

probe.imported("cv2")
picture = numpy.random.default_rng(1).integers(0, 255, (480, 640, 3), dtype=numpy.uint8)
blurred = cv2.GaussianBlur(picture, (9, 9), 2)
probe.result("sum", int(cv2.resize(blurred, (64, 48)).astype(int).sum()))
probe.result("again", int(cv2.imdecode(cv2.imencode(".png", picture)[1], cv2.IMREAD_COLOR).astype(int).sum()))
probe.variable("threads", cv2.getNumThreads())
probe.result("random", cv2.randu(numpy.zeros(4), 0, 1).tolist())
probe.end()
