"""einnet_explore.backends."""
