"""A small kernel language of frozen values, printed as CUDA C, OpenCL C or C.

A ``Kernel`` describes one thread of one block of a grid.  ``printer.emit(kernel, dialect)`` returns its text and needs
no device; ``runtime.cuda.nvrtc``, ``runtime.c_kernels`` and, for tests, ``einnet_evaluation.gpu_emulation`` compile and
run it.
"""
