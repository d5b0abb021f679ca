"""Generated kernels written as TVM statements."""
