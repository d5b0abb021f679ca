"""Jupyter widgets for einnet_explore. Nothing in einnet_explore imports this package."""

from einnet_widgets.panel import Panel, panel

__all__ = ["Panel", "panel"]
