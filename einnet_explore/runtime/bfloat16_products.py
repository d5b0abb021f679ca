r"""Sums of products of bfloat16 in float32, which ``integer_products`` computes as those of bytes.

Factors that are rounded to bfloat16 are rounded when they are packed, constant ones once.  Each product of two is exact
in float32.  The instruction takes numbers below :math:`2^{-126}` for 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.analysis.products import TensorContraction, match_matrix_product, match_window_product
from einnet_explore.codegen.sum_of_products import SUM_RESULT, normalize_ranges, split_epilogue
from einnet_explore.ir import FLOAT32, Access, Apply, Scalar, Scope, Tensor, accesses, element_type, factors, mul
from einnet_explore.runtime.integer_products import PackedProduct, packed_product


@dataclass(frozen=True)
class Bfloat16Product:
    """A *scope* that sums products of bfloat16 of two tensors, and the *epilogue* on that (``SumOfProducts``).

    The sum, *product*, has no iterators of one value.
    """

    scope: Scope
    product: TensorContraction
    epilogue: Scalar = SUM_RESULT[()]


def match_bfloat16_product(scope: Scope) -> Bfloat16Product | None:
    """Return *scope* as a sum that this module computes; None if it is none.

    It sums products of factors in bfloat16 in ``float32``, which may be rounded to it; scalar functions of the sum, of
    other tensors and of the traversals may follow.
    """
    found = split_epilogue(scope)
    if found is None:
        return None
    core, epilogue = normalize_ranges(*found)
    if element_type(scope) != FLOAT32 or not all(map(_is_side, accesses(epilogue))):
        return None
    reads = tuple(map(_bfloat16_read, factors(core.body)))
    if len(reads) != 2 or any(a is None or a.source.value != 0 for a in reads):
        return None
    plain = replace(core, body=mul(*filter(None, reads)))
    product = match_matrix_product(plain) or match_window_product(plain)
    return None if product is None else Bfloat16Product(scope, product, epilogue)


def _is_side(access: Access) -> bool:
    """Whether *access*, of an epilogue, reads the sum, or elements of a tensor of ``float32``."""
    source = access.source
    return isinstance(source, Tensor) and source.dtype == FLOAT32 and is_inside_box(access.index, source.box)


def _bfloat16_read(factor: Scalar) -> Access | None:
    """The read of a tensor whose elements are those of *factor*, perhaps rounded to bfloat16; else None."""
    match factor:
        case Apply("bfloat16", (Access(Tensor(dtype="float32")) as read,)) | (Access(Tensor(dtype="bfloat16")) as read):
            return read
    return None


def bfloat16_kernel(
    found: Bfloat16Product, constants: Iterable[str], views: Mapping[str, Scope], threads: int = 1
) -> PackedProduct | None:
    """Return the kernel of *found*; None if an operand is not read so, or too large.

    Operands in *constants* never change; those in *views* are views of other tensors.
    """
    return packed_product(found.scope, found.product, found.epilogue, constants, views, threads)
