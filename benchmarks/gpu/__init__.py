"""Measurements on a GPU as one bundle: made where the package is installed, run on the machine with the GPU."""
