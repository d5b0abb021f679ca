"""einnet_explore.session."""
