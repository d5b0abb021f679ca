r"""Storage layout: an intermediate is stored in another order, and its readers read it there.

.. math::
   T = \mathop{L}_{\vec x}^{X} f(\vec x) \;\circ\; g(T[\pi]) \;\mapsto\;
   T = \mathop{L}_{\vec z}^{\Phi(X)} f(\Phi^{-1}(\vec z)) \;\circ\; g(T[\Phi(\pi)])

Φ is a bijection of boxes: a permutation (NCHW to NHWC), a split (blocked layouts), a join.  It is variable substitution
(Table 1; §4.1) whose outer scope, a re-indexing, is merged into the readers.  With *readers*, the tensor is unchanged,
and only these readers read a copy in the other layout, which is made once.  So is a copy of an input, for one reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.equations import map_reads, tensor_names, whole_equation
from einnet_explore.analysis.indices import substitute, substitute_domain
from einnet_explore.analysis.regions import Bijection, bijection
from einnet_explore.ir import VIEW, Access, Equation, Index, Iterator, Padding, Path, Program, Scope, as_index
from einnet_explore.rules.base import Rule, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Stored:
    """Φ by the names of the new traversals, an index in the old ones for each; the *readers* of a copy (or none)."""

    phi: tuple[tuple[str, Index], ...]
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InputCopy:
    """An input called *tensor*, of which the equation reads a copy with the dimensions in this *order*."""

    tensor: str
    order: tuple[int, ...]


def propose(_: Program, __: Path) -> Iterable[Stored | InputCopy]:
    """Propose nothing: layouts are chosen for all tensors of a program together."""
    return ()


@refusing()
def rewrite(program: Program, at: Path, params: Stored | InputCopy) -> Program:
    """Apply the law; refuses an output, a Φ that is no bijection onto a box, and padding that Φ would split."""
    equation = whole_equation(program, at)
    if isinstance(params, InputCopy):
        return _copy_input(program, equation, params)
    scope = equation.scope
    if stray := {x.name for _, i in params.phi for x in i.iterators if x not in scope.traversals}:
        raise Refused(f"Φ reads {', '.join(sorted(stray))}: expected traversals of {equation.name}")
    phi = bijection(scope.traversals, tuple(n for n, _ in params.phi), tuple(i for _, i in params.phi))
    if phi.image:
        raise Refused(f"Φ reaches {phi.points[0]} of {phi.points[1]} points, expected a box: {phi.image[0]!r} fails")
    if phi.forward == tuple(map(as_index, scope.traversals)):
        raise Refused(f"Φ leaves {equation.name} as it is")
    if not params.readers:
        if equation.name in program.outputs:
            raise Refused(f"{equation.name} is an output, its layout is the caller's")
        return _read_there(program, equation, replace(equation, scope=with_layout(scope, phi), via=None), phi, None)
    read = {e.name for e in program.equations if equation.name in tensor_names(e.scope)}
    if strange := [name for name in params.readers if name not in read]:
        raise Refused(f"{', '.join(strange)} does not read {equation.name}, which {', '.join(sorted(read))} read")
    back = tuple(phi.to_target[x] for x in scope.traversals)
    padding = _padding(scope, phi)
    copy = Scope(phi.target, (), Access(equation.tensor, back), padding=padding, value=scope.value if padding else 0)
    return _read_there(program, equation, Equation(program.fresh("T"), copy), phi, params.readers)


def _copy_input(program: Program, reader: Equation, params: InputCopy) -> Program:
    """Return *program* where *reader* reads a permuted copy of an input; refuses other tensors and no permutation."""
    source = next((t for t in program.inputs if t.name == params.tensor), None)
    if source is None or params.tensor not in tensor_names(reader.scope):
        raise Refused(f"{params.tensor} is no input that {reader.name} reads")
    if sorted(params.order) != list(range(len(source.shape))):
        raise Refused(f"{params.order} is no order of the {len(source.shape)} dimensions of {source.name}")
    if params.order == tuple(range(len(source.shape))):
        raise Refused(f"the order leaves {source.name} as it is")
    own = tuple(Iterator(f"z{d + 1}", lo, hi) for d, (lo, hi) in enumerate(source.box))
    over = tuple(own[d] for d in params.order)
    padding = tuple(source.padding[d] for d in params.order) if source.padding else ()
    body = Access(source, tuple(map(as_index, own)))
    copy = Equation(program.fresh("T"), Scope(over, (), body, padding=padding, value=source.value if padding else 0))

    def there(access: Access) -> Access:
        return Access(copy.tensor, tuple(access.index[d] for d in params.order))

    reading = replace(reader, scope=map_reads(reader.scope, source.name, there), via=None)
    equations = (pair for e in program.equations for pair in ((copy, reading) if e is reader else (e,)))
    return replace(program, equations=tuple(equations))


def with_layout(scope: Scope, phi: Bijection) -> Scope:
    """Return *scope* over Φ's new traversals; refuses padding that Φ would split."""
    return replace(
        scope,
        traversals=phi.target,
        body=substitute(scope.body, phi.to_target),
        domain=substitute_domain(scope.domain, phi.to_target),
        padding=_padding(scope, phi),
    )


def _read_there(
    program: Program, old: Equation, new: Equation, phi: Bijection, readers: tuple[str, ...] | None
) -> Program:
    """Return *program* with *new* in place of *old* (for some *readers*: after it), read at Φ of the old index.

    Library calls whose operands are views of it are open again as well, since the strides of the views change.
    """
    tensor = new.tensor
    views = set[str]()

    def there(access: Access) -> Access:
        return Access(tensor, map_index(phi, access.index))

    out: list[Equation] = []
    for e in program.equations:
        if e is old:
            out.extend([new] if readers is None else [old, new])
        elif old.name in tensor_names(e.scope) and (readers is None or e.name in readers):
            out.append(replace(e, scope=map_reads(e.scope, old.name, there), via=None))
            if e.via is not None and e.via.operator == VIEW:
                views.add(e.name)
        elif e.via is not None and e.via.is_library_call and not views.isdisjoint(tensor_names(e.scope)):
            out.append(replace(e, via=None))
        else:
            out.append(e)
    return replace(program, equations=tuple(out))


def map_index(phi: Bijection, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return Φ at *index*."""
    to: Mapping[Iterator, Index] = dict(zip(phi.source, index, strict=True))
    return tuple(f.substitute(lambda x: to.get(x, as_index(x))) for f in phi.forward)


def _padding(scope: Scope, phi: Bijection) -> Padding:
    """Return the padding of each new dimension: that of an old one, or none for parts and products of old ones."""
    if not scope.padding:
        return ()
    of = dict(zip(scope.traversals, scope.padding, strict=True))
    whole = {x for f in phi.forward if (x := f.single) is not None}
    if torn := [x.name for x in scope.traversals if any(of[x]) and x not in whole]:
        raise Refused(f"{', '.join(torn)} is padded by {of[_called(scope, torn[0])]}: Φ must not split it")
    return tuple(of[x] if (x := f.single) is not None else (0, 0) for f in phi.forward)


def _called(scope: Scope, name: str) -> Iterator:
    return next(x for x in scope.traversals if x.name == name)


def explain(_: Program, __: Path) -> str:
    """Say that layouts are assigned to whole programs."""
    return "layouts are chosen for all tensors of a program together: give phi"


STORAGE_LAYOUT = Rule(
    "storage_layout",
    r"T = \mathop{L}_{\vec x}^{X} f \circ g(T[\pi]) \;\mapsto\;"
    r" T = \mathop{L}_{\vec z}^{\Phi(X)} f(\Phi^{-1}(\vec z)) \circ g(T[\Phi(\pi)])",
    propose,
    rewrite,
    explain=explain,
)
