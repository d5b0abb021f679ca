"""Library operators as values, their iterator mapping tables, and matching (EinNet §5.1)."""

from einnet_explore.operators.form import Distance, GroupDistance, Unmatched, distance
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.matching import Layout, OperatorMatch, fit, match
from einnet_explore.operators.operator import Attributes, IteratorTable, OnnxNode, Operator

__all__ = [
    "OPERATORS",
    "Attributes",
    "Distance",
    "GroupDistance",
    "IteratorTable",
    "Layout",
    "OnnxNode",
    "Operator",
    "OperatorMatch",
    "Unmatched",
    "distance",
    "fit",
    "match",
]
