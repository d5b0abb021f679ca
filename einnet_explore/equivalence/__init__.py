"""Proofs that two programs are equal: term relations, term multisets, sampling, certificates."""
