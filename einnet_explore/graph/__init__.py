"""einnet_explore.graph."""
