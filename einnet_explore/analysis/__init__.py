"""Analyses of expressions: substitution, regions, legality, access structure, canonical keys, sibling alignment."""
