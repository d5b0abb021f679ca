"""Everything that is measured on a GPU, in one bundle: made where the package is, run where the GPU is."""
