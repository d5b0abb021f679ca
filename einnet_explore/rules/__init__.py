"""einnet_explore.rules."""
