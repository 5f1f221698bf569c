"""A file with arrays."""

import os

import probe

import h5py
import numpy

probe.imported("h5py")
path = os.path.join(probe.folder(), "arrays.h5")
with h5py.File(path, "w") as file:
    file.create_dataset("numbers", data=numpy.arange(100.0), chunks=True, compression="gzip")
with h5py.File(path) as file:
    probe.result("sum", float(file["numbers"][:].sum()))
probe.end()
