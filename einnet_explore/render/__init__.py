"""einnet_explore.render."""
