"""Library operators as values, their iterator mapping tables, and matching (EinNet §5.1)."""

from einnet_explore.operators.form import ExpressionDistance, GroupDistance, expression_distance, own_iterators
from einnet_explore.operators.layout import Layout, strides_of
from einnet_explore.operators.library import OPERATORS, check_canonical, find_operators
from einnet_explore.operators.matching import OperatorMatch, fit_operator, match_operator
from einnet_explore.operators.operator import Attributes, IteratorTable, OnnxNode, Operator
from einnet_explore.support.errors import Refused

__all__ = [
    "OPERATORS",
    "Attributes",
    "ExpressionDistance",
    "GroupDistance",
    "IteratorTable",
    "Layout",
    "OnnxNode",
    "Operator",
    "OperatorMatch",
    "Refused",
    "check_canonical",
    "expression_distance",
    "find_operators",
    "fit_operator",
    "match_operator",
    "own_iterators",
    "strides_of",
]
