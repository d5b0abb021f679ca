r"""Flattened tensors: an access as one affine address, :math:`\sum_x s_x\,x + o` (EinNet §5.1, Fig. 8 c–d)."""

from __future__ import annotations

from dataclasses import dataclass

from einnet_explore.algebra.flatten import flat_address, row_major
from einnet_explore.ir import Access, Iterator, Scope, Tensor


@dataclass(frozen=True, slots=True)
class Flattened:
    """The address of an access in strides of its source: (dimension, coefficient) pairs for each iterator.

    ``Y[u-1, u, i, w]`` is ``(l_Y0 + l_Y1)*u + l_Y2*i + l_Y3*w - l_Y0``.
    """

    name: str
    strides: tuple[tuple[Iterator, tuple[tuple[int, int], ...]], ...]
    offset: tuple[tuple[int, int], ...]

    def stride(self, x: Iterator) -> str:
        """The stride of *x*, written with the source's strides ``l_``."""
        return _show(self.name, dict(self.strides).get(x, ()))

    @property
    def offset_text(self) -> str:
        """The constant offset, written with the source's strides."""
        return _show(self.name, self.offset)


def flatten(access: Access, name: str = "") -> Flattened | None:
    """*access* by the strides of its source, or None where its index is not affine."""
    source = access.source
    name = name or (source.name if isinstance(source, Tensor) else "S")
    if not all(i.affine for i in access.index):
        return None
    iterators = dict.fromkeys(x for i in access.index for x in i.iterators)
    return Flattened(
        name,
        tuple((x, tuple((d, k) for d, i in enumerate(access.index) if (k := i.coefficient(x)))) for x in iterators),
        tuple((d, i.const) for d, i in enumerate(access.index) if i.const),
    )


def outside(access: Access) -> str | None:
    """Which dimension of *access* is read outside its source's box, in words; None if none is."""
    for d, (i, (lo, hi)) in enumerate(zip(access.index, access.source.box, strict=True)):
        a, b = i.bounds
        if a < lo or b >= hi:
            return f"dimension {d} is read in [{a}, {b}], the elements lie in [{lo}, {hi})"
    return None


def strides_of(scope: Scope) -> tuple[int, ...] | str:
    """The strides of *scope* as a view of the tensor that it reads, or why it is none."""
    match scope:
        case Scope(summations=(), body=Access(source=Tensor()) as access, domain=()):
            pass
        case Scope(summations=()):
            return "a view reads one tensor and nothing else"
        case _:
            return f"a view has no summations, found {len(scope.summations)}"
    if (why := outside(access)) is not None:
        return f"a view stays inside its source: {why}"
    at = flat_address(access)
    if not at.affine:
        return f"the flat address {at!r} is not affine"
    return tuple(at.coefficient(x) for x in scope.traversals)


def packed(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether the elements lie one after another in row-major order (extents of 1 have any stride)."""
    return all(n == 1 or s == want for n, s, want in zip(shape, strides, row_major(shape), strict=True))


def leading(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether each row is packed and rows do not overlap: what an operator with leading dimensions takes."""
    rows = [s for n, s in zip(shape[:-1], strides[:-1], strict=True) if n > 1]
    return (shape[-1] == 1 or strides[-1] == 1) and all(s >= shape[-1] for s in rows[-1:]) and all(s >= 0 for s in rows)


def _show(name: str, parts: tuple[tuple[int, int], ...]) -> str:
    text = "".join(f" {'-' if k < 0 else '+'} {'' if abs(k) == 1 else f'{abs(k)}*'}l_{name}{d}" for d, k in parts)
    return text.removeprefix(" + ").replace(" - ", "-", 1 if text.startswith(" -") else 0) or "0"
