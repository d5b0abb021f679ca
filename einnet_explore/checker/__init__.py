"""Replay of the certificates of a record, without rules or search."""
