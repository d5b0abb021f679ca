"""Well-formed programs: iterators are bound, tensors known, indices as many as dimensions.

Programs that are parsed, imported or made by the library are well-formed.  What a rule of a user makes is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from einnet_explore.analysis.indices import read_indices
from einnet_explore.ir import Access, Apply, Compare, Const, Index, Iterator, Program, Scope, Table, Tensor, tensors
from einnet_explore.ir.expression import walk_scalar

T = TypeVar("T")

Shapes = Mapping[str, tuple[int, ...]]


def require_type(value: object, expected: type[T]) -> T:
    """Return *value*; raises TypeError if it is none of type *expected*."""
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"expected {article} {expected.__name__}, found {'None' if value is None else repr(value)}")
    return value


def require_well_formed(before: Program, after: Program) -> None:
    """Raise ValueError or TypeError if *after* is ill-formed, or has other inputs or outputs than *before*.

    Tensors that *before* reads without declaring them are known, too.
    """
    if (found := require_type(after, Program).inputs) != before.inputs:
        raise ValueError(f"the inputs are {list(found)}, expected {list(before.inputs)}")
    if after.outputs != before.outputs:
        raise ValueError(f"the outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}")
    old = {equation.name: equation.scope for equation in before.equations}
    read = (tensor for scope in old.values() for tensor in tensors(scope))
    known = {tensor.name: tensor.shape for tensor in (*before.inputs, *read) if tensor.name not in old}
    for equation in after.equations:
        if (scope := equation.scope) is not old.get(equation.name):
            for flaw in _flaws(require_type(scope, Scope), known):
                raise ValueError(flaw)
        known[equation.name] = scope.shape
    for name in before.outputs:
        if known.get(name) != old[name].shape:
            raise ValueError(f"output {name} has the shape {known.get(name)}, expected {old[name].shape}")


def _flaws(scope: Scope, known: Shapes) -> Iterable[str]:
    """Yield what is wrong with *scope* and the scopes inside; *known* are the shapes of tensors that it may read."""
    own = tuple(require_type(x, Iterator) for x in (*scope.traversals, *scope.summations))
    for part in walk_scalar(scope.body):
        if not isinstance(part, Access | Apply | Const | Compare):
            yield f"the body has {part!r}, expected an Access, an Apply, a Const or a Compare"
        elif isinstance(part, Access):
            yield from _flaws_of_source(part, known)
    for index in (*read_indices(scope.body), *(bound.index for bound in scope.domain)):
        if stranger := next((x for x in require_type(index, Index).iterators if x not in own), None):
            bound = ", ".join(map(_shown, own)) or "none"
            yield f"iterator {stranger.name} is not bound: found {_shown(stranger)}, expected one of {bound}"


def _flaws_of_source(access: Access, known: Shapes) -> Iterable[str]:
    source = access.source
    match source:
        case Scope():
            yield from _flaws(source, known)
        case Tensor(name, shape):
            if name not in known:
                yield f"tensor {name} is no input and no earlier equation, of {', '.join(known)}"
            elif shape != known[name]:
                yield f"tensor {name} has the shape {known[name]}, found a read of {shape}"
        case Table():
            pass
        case _:
            yield f"an Access reads {source!r}, expected a Tensor, a Scope or a Table"
            return
    if len(access.index) != len(source.shape):
        yield f"{source!r} has {len(source.shape)} dimensions, found {len(access.index)} indices"


def _shown(x: Iterator) -> str:
    return f"{x.name} in [{x.lo}, {x.hi})"
