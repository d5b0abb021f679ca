"""einnet_explore.strategies."""
