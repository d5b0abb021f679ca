"""What the tokens of a program are: definition, range, shape, and where they are used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from einnet_explore.analysis.indices import read_indices
from einnet_explore.analysis.regions import index_reach
from einnet_explore.ir import Access, Apply, Compare, Index, Iterator, Path, Program, Scope, Tensor, show_path
from einnet_explore.ir.expression import accesses, walk_scalar
from einnet_explore.ir.printer import scalar_text
from einnet_explore.ir.program import scopes
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import text

LISTED = 4
"""Maximum number of listed places where a token is used."""

SHOWN = 80
"""Characters of a part of a formula in a description."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token named as ``syntax.latex_printer.tokens_of`` names it; *title* says what it is, *says* more about it.

    *at* is the path of its scope, *node* the node of the computation graph, *names* the iterators and tensors in it.
    """

    title: str
    says: tuple[str, ...]
    at: Path
    node: str
    names: frozenset[str]


@lru_cache(64)
def describe_tokens(program: Program) -> Mapping[str, Token]:
    """Return the tokens of *program* by name."""
    found = dict[str, Token]()
    for n, equation in enumerate(program.equations):
        for below, scope in scopes(equation.scope):
            found |= _scope_tokens(scope, (n, *below), equation.name)
    names = dict.fromkeys((*(t.name for t in program.inputs), *(e.name for e in program.equations)))
    for n, name in enumerate(names):
        found[f"t{n}"] = _tensor(program, name)
    return found


def _scope_tokens(scope: Scope, at: Path, node: str) -> Iterable[tuple[str, Token]]:
    path = show_path(at)
    over = {x.name for x in (*scope.traversals, *scope.summations)}
    size = f"shape {_shape(scope.shape)}"
    sums = (
        f"{scope.reduce} over {count_noun(prod(x.extent for x in scope.summations), 'point')}"
        if scope.summations
        else "no reduction"
    )
    title = f"expression of {node}" if len(at) == 1 else f"scope in {node}"
    yield f"p{path}", Token(title, (size, sums, *map(str, scope.domain)), at, node, frozenset(over))
    for n, x in enumerate((*scope.traversals, *scope.summations)):
        yield f"x{path}_{n}", _iterator(scope, x, at, node)
    for n, access in enumerate(accesses(scope.body)):
        inside = show_path((*at, n))
        yield f"a{inside}", _access(access, at, node)
        for k, index in enumerate(access.index):
            yield f"i{inside}_{k}", _index(scope, access, k, index, at, node)
    for n, part in enumerate(p for p in walk_scalar(scope.body) if isinstance(p, Apply | Compare)):
        kind = f"condition {part.op}" if isinstance(part, Compare) else _KINDS.get(part.op, f"function {part.op}")
        used = frozenset(x.name for index in read_indices(part) for x in index.iterators)
        yield f"f{path}_{n}", Token(kind, (_short(scalar_text(part)),), at, node, used | _tensors(part))


_KINDS = {"*": "product", "+": "sum of terms", "-": "difference", "/": "quotient", "neg": "negation"}


def _iterator(scope: Scope, x: Iterator, at: Path, node: str) -> Token:
    role = "traversal" if x in scope.traversals else f"iterator of the {scope.reduce}"
    uses = [
        f"{_source(access)} dimension {k}: {text(index)}"
        for access in accesses(scope.body)
        for k, index in enumerate(access.index)
        if x in index.iterators
    ]
    bounds = [str(b) for b in scope.domain if x in b.index.iterators]
    used = (f"used in {'; '.join(_first(uses))}",) if uses else ("in no index of an access",)
    says = (f"{x.lo} ≤ {x.name} < {x.hi}: {count_noun(x.extent, 'value')}", *used, *(f"where {b}" for b in bounds))
    return Token(
        f"{x.name}: {role} of {'the expression of' if len(at) == 1 else 'a scope in'} {node}",
        says,
        at,
        node,
        frozenset({x.name}),
    )


def _index(scope: Scope, access: Access, k: int, index: Index, at: Path, node: str) -> Token:
    lo, hi = index_reach(index, scope.domain)
    start, stop = access.source.box[k]
    outside = [
        f"{count_noun(n, 'element')} {side}: value {access.source.value:g}"
        for n, side in ((start - lo, "below"), (hi - stop + 1, "above"))
        if n > 0 and hi >= lo
    ]
    says = (f"values {lo} to {hi}, the dimension has [{start}, {stop})", *(f"reaches {each}" for each in outside))
    title = f"{text(index)}: index of dimension {k} of {_source(access)}"
    return Token(title, says, at, node, frozenset(x.name for x in index.iterators))


def _access(access: Access, at: Path, node: str) -> Token:
    source = access.source
    title = "read of the inner scope" if isinstance(source, Scope) else f"read of {_source(access)}"
    used = {x.name for index in access.index for x in index.iterators}
    names = used | ({source.name} if isinstance(source, Tensor) else set())
    padding = (f"padding {', '.join(map(str, source.padding))}",) if source.padding else ()
    constant = "depends on no iterator" if not used else f"depends on {', '.join(sorted(used))}"
    return Token(title, (f"shape {_shape(source.shape)}", *padding, constant), at, node, frozenset(names))


def _tensor(program: Program, name: str) -> Token:
    made = next((n for n, e in enumerate(program.equations) if e.name == name), None)
    readers = [e.name for e in program.equations if any(t.name == name for _, s in scopes(e.scope) for t in _read(s))]
    read = f"read by {', '.join(_first(readers))}" if readers else "read by no equation"
    output = ("an output",) if name in program.outputs else ()
    if made is None:
        tensor = next(t for t in program.inputs if t.name == name)
        title, at, shape = f"{name}: {'weight' if tensor.weight else 'input'}", (), tensor.shape
    else:
        equation = program.equations[made]
        how = f", run by {equation.via.operator}" if equation.via else ""
        title, at, shape = f"{name}: result of equation {made}{how}", (made,), equation.scope.shape
    return Token(title, (f"shape {_shape(shape)}", read, *output), at, name, frozenset({name}))


def _read(scope: Scope) -> Iterable[Tensor]:
    return (access.source for access in accesses(scope.body) if isinstance(access.source, Tensor))


def _tensors(part: Apply | Compare) -> frozenset[str]:
    return frozenset(a.source.name for a in accesses(part) if isinstance(a.source, Tensor))


def _source(access: Access) -> str:
    match access.source:
        case Tensor(name=name):
            return name
        case Scope():
            return "the inner scope"
        case _:
            return "a table"


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a number"


def _first(found: list[str]) -> list[str]:
    return found[:LISTED] + ([f"{len(found) - LISTED} more"] if len(found) > LISTED else [])


def _short(shown: str) -> str:
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 1]}…"
