r"""Chains of equations after a matrix product that cuBLASLt computes before it stores:
:math:`Y = \max(0, A B + b)`, where :math:`b` has an element for each column of the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import prod

from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.ir import VIEW, Access, Apply, Const, Equation, Scalar, Scope, Tensor, accesses, as_index, terms
from einnet_explore.runtime.cuda.steps import Epilogue, View


@dataclass(frozen=True)
class EpilogueChain:
    """*equations* that read nothing but a product, or one another, and a vector: the product stores the last one.

    The last one may be rounded to half precision.

    *bias* is its read, at the traversals of *scope*.
    """

    equations: tuple[Equation, ...] = ()
    bias: Access | None = None
    scope: Scope | None = None
    relu: bool = False

    def epilogue(self, places: Mapping[str, View], product: View) -> Epilogue | None:
        """Return the epilogue of a product whose matrices are *product*; None if the bias is not one of its columns.

        *places* are those of tensors that are computed before.
        """
        if self.bias is None or self.scope is None:
            return Epilogue(relu=self.relu)
        source = self.bias.source
        place = places.get(source.name) if isinstance(source, Tensor) else None
        seen = view_strides(Scope(self.scope.traversals, (), self.bias))
        if place is None or seen is None or place.strides != row_major_strides(place.shape):
            return None
        offset, strides = seen
        shape = self.scope.shape
        far = row_major_strides(shape)
        own = [(d, n) for d, n in enumerate(shape) if n > 1 and strides[d]]
        columns, step = product.shape[-1], product.strides[-1]
        # The bias moves along neighbouring dimensions, the last ones, which together are the columns.
        inner = row_major_strides(tuple(n for _, n in own))
        packed = all(strides[d] == k == far[d] for (d, _), k in zip(own, inner, strict=True))
        if not own or not packed or step != 1 or prod(n for _, n in own) != columns:
            return None
        return Epilogue(View(place.name, place.offset + offset, (columns,), (1,)), self.relu)


def epilogue_chains(
    product: Equation, readers: Mapping[str, Set[str]], equations: Mapping[str, Equation], outputs: Iterable[str]
) -> tuple[EpilogueChain, ...]:
    """Return what can be computed by the epilogue of *product*, longest chains first.

    *readers* are the names of *equations* that read a tensor.
    """
    kept, last, chain = set(outputs), product, EpilogueChain()
    found: list[EpilogueChain] = []
    while last.name not in kept and len(next_ones := readers.get(last.name, set())) == 1:
        equation = equations[next(iter(next_ones))]
        longer = _longer(chain, last, equation)
        if longer is None:
            break
        last, chain = equation, longer
        if equation.via is None or equation.via.operator != VIEW:
            found.append(chain)
    return tuple(reversed(found))


def _longer(chain: EpilogueChain, last: Equation, equation: Equation) -> EpilogueChain | None:
    """Return *chain*, which ends at *last*, with *equation*: a bias, ReLU, both, or a view of the same elements."""
    scope, done = equation.scope, (*chain.equations, equation)
    if equation.via is not None and equation.via.operator == VIEW:
        same = view_strides(scope) == (0, row_major_strides(scope.shape))
        return EpilogueChain(done, chain.bias, chain.scope, chain.relu) if same else None
    if scope.summations or scope.domain or scope.box != last.scope.box or chain.relu or last.tensor.dtype == "float16":
        return None
    own = tuple(map(as_index, scope.traversals))
    reads = [a for a in accesses(scope.body) if isinstance(a.source, Tensor) and a.source.name == last.name]
    if len(reads) != 1 or reads[0].index != own:
        return None
    match scope.body:
        case Apply("float16", (body,)):  # the store rounds
            pass
        case body:
            pass
    inside = _of_relu(body)
    match [t for t in terms(inside or body) if t != reads[0]]:
        case []:
            return EpilogueChain(done, chain.bias, chain.scope, inside is not None)
        case [Access() as bias] if chain.bias is None:
            return EpilogueChain(done, bias, scope, inside is not None)
    return None


def _of_relu(body: Scalar) -> Scalar | None:
    match body:
        case Apply("relu", (inside,)) | Apply("maximum", (inside, Const(0)) | (Const(0), inside)):
            return inside
    return None
