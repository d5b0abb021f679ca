"""einnet_explore.text."""
