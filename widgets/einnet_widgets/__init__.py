"""Jupyter widgets for einnet_explore. Nothing in einnet_explore imports this package."""
