"""Everything that is measured on a GPU, in one bundle: made where the package is, run where the GPU is."""

from benchmarks.gpu.alone import plain_backends

plain_backends()
