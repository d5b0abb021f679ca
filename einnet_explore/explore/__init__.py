"""einnet_explore.explore."""
