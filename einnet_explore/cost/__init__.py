"""einnet_explore.cost."""
