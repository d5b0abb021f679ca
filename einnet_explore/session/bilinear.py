r"""Bilinear algorithms: filters and matrix products by fewer multiplications, and their rounding errors.

An algorithm is a triple of rational matrices (U, V, W) with
:math:`y_k = \sum_p W[k,p] (\sum_i U[p,i] x_i) (\sum_j V[p,j] g_j)`.  ``correlation(m, r)`` returns Winograd's F(m, r),
``strassen()`` the product of 2×2 matrices by seven multiplications; ``check_bilinear`` compares a triple with the form
that it should compute (``correlates``, ``matrix_product_form``), exactly; ``nest_algorithms`` composes two.
``run_bilinear`` runs a triple on arrays, ``bilinear_error_bound`` bounds the rounding error of that run, and
``bilinear_growth`` is the largest ratio of this bound to that of a direct sum.

The rules ``bilinear_substitution`` and ``bilinear_product`` replace parts of programs by these algorithms.
"""

from einnet_explore.analysis.bilinear import (
    Bilinear,
    check_bilinear,
    correlates,
    correlation,
    matrix_product_form,
    nest_algorithms,
    strassen,
)
from einnet_explore.interpreter.running_error import bilinear_error_bound, bilinear_growth, run_bilinear

__all__ = [
    "Bilinear",
    "bilinear_error_bound",
    "bilinear_growth",
    "check_bilinear",
    "correlates",
    "correlation",
    "matrix_product_form",
    "nest_algorithms",
    "run_bilinear",
    "strassen",
]
