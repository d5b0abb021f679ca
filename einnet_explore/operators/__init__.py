"""einnet_explore.operators."""
