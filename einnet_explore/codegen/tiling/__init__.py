"""Tiled contractions for devices with shared memory or caches, after PlaidML: from a flattened table to a kernel."""
