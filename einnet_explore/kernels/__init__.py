"""einnet_explore.kernels."""
