"""einnet_explore.pipeline."""
