"""einnet_explore.search."""
