"""einnet_explore.cli."""
