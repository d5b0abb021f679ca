"""Certificates: why a program computes what another did, or where it does not.

Only what changed is compared.  Equations are aligned by name; one that only one program has is substituted into its
readers; inside an equation the smallest sub-scopes that differ are compared first, their parents where that fails
(a bound that readers never violate may be dropped, which only the reader shows).  Scopes are compared as multisets of
terms (``tally``: a proof); where that theory does not reach they are evaluated on random integers (``exact``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Literal, TypeAlias

from einnet_explore.algebra import sampling
from einnet_explore.algebra.beside import children, inlined, pairs, unfit
from einnet_explore.algebra.given import EXPONENTIAL, ROUNDED, Given, infinite_results, only
from einnet_explore.algebra.reads import illegal_read
from einnet_explore.algebra.space import Beyond
from einnet_explore.algebra.tally import Witness, difference
from einnet_explore.ir import Box, Path, Program, Scope, show_path, tensors

Kind: TypeAlias = Literal["proved", "exact", "false"]

__all__ = ["EXACT_POINTS", "EXPONENTIAL", "ROUNDED", "UNPROVED", "Certificate", "Kind", "certify"]

UNPROVED = "not proved, and not evaluated"
"""What is said of two programs that may be equal for all that is known."""

EXACT_POINTS = 20_000_000
"""Grid points up to which two programs are evaluated whole; larger ones are evaluated in slices."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """That two programs compute the same, or that they do not.

    *kind*: ``proved``, ``exact`` (equal on random integers, over *elements* output elements) or ``false`` (then
    *counterexample* names an output element and what is wrong with it).  *method*: ``identical``, ``term relation``,
    ``composition``, ``evaluation``, ``structure`` or ``illegal read``.  *at*: the path of the scope that was compared,
    in the first program (for an illegal read: the equation of the second).  *programs*: of a composition, what each
    program on the way from the first to the last is known by (``algebra.composition``), in order; else none.
    """

    kind: Kind
    method: str
    at: str = ""
    elements: int = 0
    counterexample: str | None = None
    detail: str = ""
    programs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the programs agree."""
        return self.kind != "false"

    def __str__(self) -> str:
        match self.kind:
            case "proved" if self.programs:
                return f"proved ({self.method} of {self.detail}): equal for every input, in exact arithmetic"
            case "exact" if self.programs:
                return f"exact ({self.method} of {self.detail}): some were evaluated on random integers, not proved"
            case "proved":
                needed = only([self.detail])
                axioms = needed and f", {needed}"
                return f"proved ({self.method}): equal for every input, in exact arithmetic{axioms}"
            case "exact":
                return f"exact ({self.method}): equal on random integers at all of {self.elements} elements"
            case _:
                return f"false ({self.method}): {self.counterexample}"

    def _repr_html_(self) -> str:
        sign, colour = {"proved": ("✓", "#1b7a3d"), "exact": ("≈", "#9a6a00"), "false": ("✗", "#b00020")}[self.kind]
        kind, _, rest = str(self).partition(" ")
        return f"<b style='color:{colour}'>{sign} {kind}</b> {escape(rest)}"

    def to_json(self) -> dict[str, Any]:
        """The certificate as plain JSON values."""
        return {**asdict(self), "programs": list(self.programs)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Certificate:
        """The certificate that ``to_json`` wrote; raises ValueError where *data* is none."""
        fields: dict[str, type | tuple[type, ...]] = {
            "kind": str, "method": str, "at": str, "elements": int, "counterexample": (str, type(None)), "detail": str,
        }  # fmt: skip
        for name, expected in fields.items():
            if not isinstance(data.get(name), expected):
                raise ValueError(f"certificate: {name} is {data.get(name)!r}, expected {_named(expected)}")
        if data["kind"] not in ("proved", "exact", "false"):
            raise ValueError(f"certificate: kind is {data['kind']!r}, expected 'proved', 'exact' or 'false'")
        programs = data.get("programs", [])
        if not isinstance(programs, list) or not all(isinstance(known, str) for known in programs):
            raise ValueError(f"certificate: programs is {programs!r}, expected a list of strings")
        return Certificate(**{name: data[name] for name in fields}, programs=tuple(programs))


def certify(
    before: Program, after: Program, *, exact_elements: int | None = EXACT_POINTS, seed: int = 0
) -> Certificate:
    """Whether *after* computes every output of *before*, and reads nothing beyond its reach.

    *exact_elements* bounds the grid points that an evaluation may cost before it is done in slices; *seed* is that of
    its random inputs.  Where it is None nothing is evaluated: what is not proved counts as false.
    """
    if before == after:
        return Certificate("proved", "identical")
    if (wrong := unfit(before, after)) is not None:
        return Certificate("false", "structure", counterexample=wrong)
    known = set(before.equations)
    for number, equation in enumerate(after.equations):
        if equation not in known and (found := illegal_read(equation.scope)) is not None:
            return Certificate("false", "illegal read", str(number), 0, f"{equation.name}: {found}")
    result = _outputs(before, after, exact_elements, seed)
    if result.kind == "exact":
        # Evaluated over equations that were taken as given; these may hold what a proof needs (a symmetry, say).
        proof = _outputs(before, after, None, seed)
        return proof if proof.kind == "proved" else result
    return result


def _outputs(before: Program, after: Program, points: int | None, seed: int) -> Certificate:
    """Compare what both programs define, keeping as many shared results opaque as the comparison allows.

    Where *points* is None nothing is evaluated: what is not proved counts as false.
    """
    given = infinite_results((before.equations, after.equations))
    boxes = {e.name: e.scope.box for e in after.equations}
    kept = {e.name for e in before.equations if boxes.get(e.name) == e.scope.box}
    numbers = {e.name: n for n, e in enumerate(before.equations)}
    while True:
        left, right = inlined(before, kept), inlined(after, kept)
        results: list[Certificate] = []
        odd: set[str] = set()
        for name in (e.name for e in before.equations if e.name in kept or e.name in before.outputs):
            if left[name] == right[name]:
                continue
            found = _compare(left[name], right[name], left[name].box, (numbers[name],), given)
            if isinstance(found, str | Witness):
                # What only one of the two reads is no common ground: it is looked into before anything is evaluated.
                # So is what may be infinite, for which no random integers stand.
                one, other = _names(left[name]), _names(right[name])
                if odd := ((one ^ other) | (one & other & given.infinite)) & kept:
                    break
                found = _settle(found, left[name], right[name], numbers[name], points, seed)
            if not found.ok:
                break
            results.append(found)
        else:
            return _weakest(results)
        if odd:
            kept = kept - odd
            continue
        free = (_names(left[name]) | _names(right[name])) & set(numbers)
        if name in before.outputs and not free:
            assert isinstance(found, Certificate)
            return found
        # What failed, or what it was compared over, is no longer taken as given: its readers decide.
        kept = kept - free if name in before.outputs else kept - {name}


def _names(scope: Scope) -> set[str]:
    return {t.name for t in tensors(scope)}


def _compare(before: Scope, after: Scope, region: Box, at: Path, given: Given) -> Certificate | Witness | str:
    """The proof at the smallest scopes that differ; else what the comparison at *at* itself says against it."""
    if before == after:
        return Certificate("proved", "identical", show_path(at))
    if inner := children(before, after):
        found = [_compare(b, a, _meet(b.reach, a.reach), (*at, n), given) for n, b, a in inner]
        proofs = [c for c in found if isinstance(c, Certificate)]
        if len(proofs) == len(found):
            return proofs[0] if len(proofs) == 1 else _joint(proofs, show_path(at))
    why = _why(before, after, region, given)
    if why is None or _equal_pointwise(before, after, given):
        return Certificate("proved", "term relation", show_path(at))
    for more in given.axioms([before], [after]):
        if _why(before, after, region, more) is None or (more.rounds and _equal_pointwise(before, after, more)):
            return Certificate("proved", "term relation", show_path(at), detail=more.named)
    return why


def _why(before: Scope, after: Scope, region: Box, given: Given) -> Witness | str | None:
    try:
        return difference(before, after, region, given)
    except Beyond as beyond:
        return str(beyond)


def _settle(why: str | Witness, before: Scope, after: Scope, number: int, points: int | None, seed: int) -> Certificate:
    """What remains where there is no proof: a decisive witness, or evaluation (not where *points* is None)."""
    decisive = isinstance(why, Witness) and why.decisive
    if points is None or decisive:
        return Certificate("false", "term relation", str(number), 0, str(why), "" if decisive else UNPROVED)
    hints = (why.element, tuple(at for _, at in why.term)) if isinstance(why, Witness) else (None, ())
    sample = sampling.compare(before, after, points, seed, *hints)
    if sample.error is not None:
        return Certificate("false", "evaluation", str(number), sample.elements, sample.error, str(why))
    if sample.differs is not None:
        element, expected, found = sample.differs
        told = f"element {list(element)} is {found}, expected {expected}"
        return Certificate("false", "evaluation", str(number), sample.elements, told, str(why))
    return Certificate("exact", "evaluation", str(number), sample.elements, None, str(why))


def _weakest(results: list[Certificate]) -> Certificate:
    if not results:
        return Certificate("proved", "identical", detail="every equation means what it did")
    exact = [c for c in results if c.kind == "exact"]
    if exact:
        return replace(exact[0], elements=sum(c.elements for c in exact))
    return results[0] if len(results) == 1 else _joint(results, detail=f"{len(results)} equations")


def _joint(proofs: Iterable[Certificate], at: str = "", detail: str = "") -> Certificate:
    """All of *proofs* as one, which needs what any of them needs."""
    needed = only(c.detail for c in proofs)
    return Certificate("proved", "term relation", at, detail=", ".join(filter(None, (detail, needed))))


def _equal_pointwise(before: Scope, after: Scope, given: Given) -> bool:
    """Whether two scopes that differ in accesses only read equal elements at every point, access by access.

    So a function of a sum is equal where the sum is, although it is no sum itself.
    """
    if before.domain or replace(after, body=before.body, padding=before.padding) != before:
        return False
    met = pairs(before.body, after.body)
    if met is None:
        return False
    own = (*before.traversals, *before.summations)
    for b, a in met:
        if b != a:
            one, other = Scope(own, (), b), Scope(own, (), a)
            if one == before and other == after:
                return False
            if _why(one, other, one.box, given) is not None:
                return False
    return True


def _meet(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


def _named(expected: type | tuple[type, ...]) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
