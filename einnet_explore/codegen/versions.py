"""Identity of kernels in keys of the cache directory: their scope, and declared versions of their generators.

Keys never depend on source files, so code may move.  Raise a version when the emitted text, or the choice, changes for
the same input.  ``tests/test_versions.py`` compares recorded digests and names the version to raise.
"""

from __future__ import annotations

from einnet_explore.ir import FLOAT32, Access, Apply, Compare, Const, Index, Iterator, Scalar, Scope, Table, Tensor


def scope_identity(scope: Scope) -> str:
    """Return a text of everything that the kernel of *scope* depends on; names are numbered in order of appearance."""
    return _scope(scope, {})


def _scope(scope: Scope, tensors: dict[str, int]) -> str:
    own = {x: f"i{n}" for n, x in enumerate((*scope.traversals, *scope.summations))}
    heads = ",".join(f"{x.lo}:{x.hi}" for x in scope.traversals)
    sums = ",".join(f"{x.lo}:{x.hi}" for x in scope.summations)
    domain = ",".join(f"{_index(b.index, own)}@{b.lo}:{b.hi}" for b in scope.domain)
    body = _scalar(scope.body, own, tensors)
    return f"{{{heads}|{scope.reduce} {sums}|{domain}|{scope.padding}={scope.value!r}|{body}}}"


def _scalar(body: Scalar, own: dict[Iterator, str], tensors: dict[str, int]) -> str:
    match body:
        case Const(value):
            return repr(float(value))
        case Access(Tensor(name, shape) as t, index):
            n = tensors.setdefault(name, len(tensors))
            at = ",".join(_index(i, own) for i in index)
            kind = "" if t.dtype == FLOAT32 else t.dtype
            return f"t{n}{kind}{shape}{t.origin}={t.value!r}[{at}]"
        case Access(Scope() as inner, index):
            return f"{_scope(inner, tensors)}[{','.join(_index(i, own) for i in index)}]"
        case Access(Table(shape, entries), index):
            at = ",".join(_index(i, own) for i in index)
            return f"table{shape}({','.join(map(str, entries))})[{at}]"
        case Compare(op, left, right):
            return f"({_index(left, own)}{op}{_index(right, own)})"
        case Apply(op, args):
            return f"{op}({','.join(_scalar(a, own, tensors) for a in args)})"
    raise TypeError(f"{body!r} is no scalar")


def _index(index: Index, own: dict[Iterator, str]) -> str:
    parts = []
    for atom, k in index.terms:
        match atom:
            case Iterator():
                parts.append(f"{k}{own[atom]}")
            case _:
                parts.append(f"{k}({_index(atom.numerator, own)}{type(atom).__name__[0]}{atom.divisor})")
    # The normal form orders terms by name, which must not count here.
    return "+".join((*sorted(parts), str(index.const)))


C_KERNEL_VERSION = 12
"""Kernels in C: the fused ones, regions, transposed tiles, and the function around them."""

SCHEDULE_VERSION = 42
"""Kernels that TVM compiles: stages as written, rows, one-pass softmax, chains in blocks."""

TILED_KERNEL_VERSION = 12
"""Tiled contractions."""

INTEGER_PRODUCT_VERSION = 10
"""Products of bytes and of bfloat16, with epilogues."""

TILE_CHOICE_VERSION = 5
"""Which tile ``best_tile`` chooses for a contraction."""

SEARCH_VERSION = 25
"""What a search finds, and how its candidates are tuned and selected."""


def all_versions() -> str:
    """Every declared version: the key of results that depend on the whole engine."""
    return (
        f"search {SEARCH_VERSION}, tile choices {TILE_CHOICE_VERSION}, kernels in C {C_KERNEL_VERSION}, "
        f"in TVM {SCHEDULE_VERSION}, in tiles {TILED_KERNEL_VERSION}, of bytes {INTEGER_PRODUCT_VERSION}"
    )
