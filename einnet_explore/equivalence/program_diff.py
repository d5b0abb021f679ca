"""Program diff: interface checks, definitions of equations, and comparison of the smallest differing scopes.

The smallest sub-scopes that differ are compared first.  If that fails, their parents are compared, since only a reader
shows, for example, that a dropped bound is never violated.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from functools import lru_cache

from einnet_explore.analysis.equations import tensor_names
from einnet_explore.equivalence.assumptions import Assumptions
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.equivalence.term_multiset import Witness, term_difference
from einnet_explore.equivalence.verdict import Certificate, CertificateKind, join_proofs
from einnet_explore.ir import (
    Access,
    Apply,
    Box,
    Path,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    element_type,
    map_accesses,
    show_path,
    tensors,
)
from einnet_explore.support.errors import Refused


def require_common_interface(first: Program, second: Program) -> None:
    """Raise Refused, as ``require_same_interface`` does, in words of a comparison of two programs."""
    try:
        require_same_interface(first, second)
    except Refused as error:
        raise Refused(f"the second program: {error}, as in the first") from None


def require_same_interface(before: Program, after: Program) -> None:
    """Raise Refused for a mismatch of names, shapes or reads by which *after* cannot replace *before*."""
    if before.outputs != after.outputs:
        raise Refused(f"outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}")
    given = {t.name: t for t in before.inputs}
    for t in after.inputs:
        if t.name not in given or given[t.name].shape != t.shape:
            expected = given[t.name].shape if t.name in given else "no such input"
            raise Refused(f"input {t.name} has shape {t.shape}, expected {expected}")
        if given[t.name].box != t.box:
            raise Refused(f"input {t.name} has box {_box_text(t.box)}, expected {_box_text(given[t.name].box)}")
        if given[t.name].weight != t.weight:
            raise Refused(f"input {t.name} is {_role_text(t)}, expected {_role_text(given[t.name])}")
        if given[t.name].dtype != t.dtype:
            raise Refused(f"input {t.name} is {t.dtype}, expected {given[t.name].dtype}")
    held = {t.name: t for t in after.inputs}
    defined: set[str] = set()
    for equation in after.equations:
        for t in _read(equation.scope):
            source = held.get(t.name)
            if source is None:
                raise Refused(f"{equation.name} reads {t.name}, which is no input and no earlier equation")
            if source.box != t.box or source.dtype != t.dtype or (t.name in defined and t.value != source.value):
                raise Refused(f"{equation.name} reads {t.name} as {_tensor_text(t)}, but it is {_tensor_text(source)}")
            if t.name in defined and t.padding != source.padding and not _covers(source.reach, t.reach):
                # values beyond the reach are not defined by its scope
                reach = _box_text(source.reach)
                raise Refused(f"{equation.name} reads {t.name} in {_box_text(t.reach)}, but it reaches over {reach}")
        if equation.name in held:
            raise Refused(f"{equation.name} is defined twice")
        held[equation.name] = equation.tensor
        defined.add(equation.name)
    boxes = {e.name: e.scope.box for e in before.equations}
    types = {e.name: element_type(e.scope) for e in before.equations}
    for name in before.outputs:
        if name in types and name in defined and held[name].dtype != types[name]:
            raise Refused(f"output {name} is {held[name].dtype}, expected {types[name]}")
        if name in boxes and (name not in defined or held[name].box != boxes[name]):
            found = _box_text(held[name].box) if name in defined else "nothing"
            raise Refused(f"output {name} has box {found}, expected {_box_text(boxes[name])}")
        if name not in boxes and (name in defined or name not in held):
            found = "an equation" if name in defined else "nothing"
            raise Refused(f"output {name} is {found}, expected the input of this name")


@lru_cache(1 << 14)
def _read(scope: Scope) -> tuple[Tensor, ...]:
    return tuple(tensors(scope))


def inline_equations(program: Program, kept: Iterable[str]) -> dict[str, Scope]:
    """Return every equation's scope by name, with the equations that are not *kept* inlined into their readers."""
    keep = set(kept)
    out: dict[str, Scope] = {}
    memo: dict[Scope, Scope] = {}

    def at(access: Access) -> Scalar:
        match access.source:
            case Tensor(name) as source if name in out and name not in keep:
                return Access(replace(out[name], padding=source.padding), access.index)
            case Scope() as source:
                return Access(within(source), access.index)
        return access

    def within(scope: Scope) -> Scope:
        if scope not in memo:
            body = map_accesses(scope.body, at)
            memo[scope] = scope if body == scope.body else replace(scope, body=body)
        return memo[scope]

    for equation in program.equations:
        out[equation.name] = within(equation.scope)
    return out


def differing_scopes(before: Scope, after: Scope) -> list[tuple[int, Scope, Scope]]:
    """Return the numbered sub-scopes in which two scopes differ; empty if they also differ elsewhere."""
    if replace(after, body=before.body, padding=before.padding) != before:
        return []
    if not _differ_in_scopes_only(before.body, after.body):
        return []
    pairs = zip(accesses(before.body), accesses(after.body), strict=True)
    return [
        (n, b.source, a.source)
        for n, (b, a) in enumerate(pairs)
        if b.source != a.source and isinstance(b.source, Scope) and isinstance(a.source, Scope)
    ]


def _differ_in_scopes_only(a: Scalar, b: Scalar) -> bool:
    """Whether two bodies are equal except for the scopes that they read."""
    match a, b:
        case Access(Scope(), i), Access(Scope(), j):
            return i == j
        case Apply(f, x), Apply(g, y):
            return f == g and len(x) == len(y) and all(map(_differ_in_scopes_only, x, y))
    return a == b


def access_pairs(a: Scalar, b: Scalar) -> list[tuple[Access, Access]] | None:
    """Pair the accesses of two bodies; None if the bodies differ elsewhere."""
    match a, b:
        case Access(), Access():
            return [(a, b)]
        case Apply(f, x), Apply(g, y) if f == g and len(x) == len(y):
            found = [access_pairs(one, other) for one, other in zip(x, y, strict=True)]
            return None if None in found else [pair for some in found if some for pair in some]
    return [] if a == b else None


def _covers(box: Box, other: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(box, other, strict=True))


def _box_text(box: Box) -> str:
    return " × ".join(f"[{lo}, {hi})" for lo, hi in box) or "scalar"


def _role_text(t: Tensor) -> str:
    return "a weight" if t.weight else "no weight"


def _tensor_text(t: Tensor) -> str:
    return f"{_box_text(t.box)} with value {t.value:g} outside"


class EquationDefinitions:
    """The definitions of a program's equations, for inlining."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers = {e.name: n for n, e in enumerate(program.equations)}
        self._made_of: dict[str, frozenset[str]] = {}

    def scope(self, name: str, kept: Set[str]) -> Scope:
        """Return the scope of *name* with the equations that are not *kept* inlined."""
        met = {self._numbers[name]}
        stack = [name]
        while stack:
            for read in self._reads(stack.pop()):
                if read in self._numbers and read not in kept and self._numbers[read] not in met:
                    met.add(self._numbers[read])
                    stack.append(read)
        equations = tuple(self._program.equations[n] for n in sorted(met))
        return (
            inline_equations(replace(self._program, equations=equations), kept)[name]
            if len(met) > 1
            else equations[0].scope
        )

    def made_of(self, name: str) -> frozenset[str]:
        """Return the names of all tensors that *name* depends on, directly or through equations."""
        if not self._made_of:
            for equation in self._program.equations:
                read = self._reads(equation.name)
                self._made_of[equation.name] = frozenset(read).union(*(self._made_of.get(r, ()) for r in read))
        return self._made_of.get(name, frozenset())

    def _reads(self, name: str) -> Iterable[str]:
        return tensor_names(self._program.equations[self._numbers[name]].scope)


def outermost_names(names: Set[str], *sides: tuple[EquationDefinitions, Set[str]]) -> Set[str]:
    """Return the *names* on which no other of them depends; all of them if there is none.

    *sides* are the programs that read them, each with the names read there.
    """
    inner = {n for definitions, read in sides for m in names & read for n in definitions.made_of(m) if n != m}
    return names - inner or names


def prove_scopes_equal(
    before: Scope, after: Scope, region: Box, at: Path, given: Assumptions
) -> Certificate | Witness | str:
    """Prove equality at the smallest differing scopes; else return the counterexample or reason at *at*.

    A certificate is ``proved``, or ``rounded``; its *error* is then the largest relative change of a constant.
    """
    if before == after:
        return Certificate("proved", "identical", show_path(at))
    if inner := differing_scopes(before, after):
        found = [prove_scopes_equal(b, a, _intersection(b.reach, a.reach), (*at, n), given) for n, b, a in inner]
        proofs = [c for c in found if isinstance(c, Certificate)]
        if len(proofs) == len(found):
            return proofs[0] if len(proofs) == 1 else join_proofs(proofs, show_path(at))
    why = _counterexample(before, after, region, given)
    if why is None or _equal_pointwise(before, after, given):
        return Certificate("proved", "term relation", show_path(at))
    for more in given.axioms([before], [after]):
        if _counterexample(before, after, region, more) is None or (
            more.rounding and _equal_pointwise(before, after, more)
        ):
            change = more.rounding.change if more.rounding else 0.0
            kind: CertificateKind = "rounded" if change else "proved"
            return Certificate(kind, "term relation", show_path(at), detail=more.named, error=change)
    return why


def _counterexample(before: Scope, after: Scope, region: Box, given: Assumptions) -> Witness | str | None:
    try:
        return term_difference(before, after, region, given)
    except Undecided as beyond:
        return str(beyond)


def _equal_pointwise(before: Scope, after: Scope, given: Assumptions) -> bool:
    """Whether two scopes that differ in accesses only read equal elements at every point, access by access.

    For example, functions of equal sums are equal.
    """
    if before.domain or replace(after, body=before.body, padding=before.padding) != before:
        return False
    met = access_pairs(before.body, after.body)
    if met is None:
        return False
    own = (*before.traversals, *before.summations)
    for b, a in met:
        if b != a:
            one, other = Scope(own, (), b), Scope(own, (), a)
            if one == before and other == after:
                return False
            if _counterexample(one, other, one.box, given) is not None:
                return False
    return True


def _intersection(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
