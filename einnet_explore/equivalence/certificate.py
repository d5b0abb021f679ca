"""Certificates: proof that two programs are equal, or a counterexample.

Only changed equations are compared.  Equations are aligned by name and taken in order; an equation proved equal in both
programs is a tensor for its readers.  Other equations that the two sides read are inlined, the outermost first, until
both sides read the same tensors.  Inside an equation the smallest differing sub-scopes are compared first.  Scopes are
compared as term multisets (``proved``; ``rounded`` if only rounded constants agree, with a bound on the error that this
causes, see ``value_bounds``); beyond that theory they are evaluated on random inputs (``exact``, or
``unknown`` where these leave a gap).

A chain of certified steps has one certificate, since equality is transitive: a direct comparison of distant programs
may have too many terms, even if every step between them is proved.

``compare_modulo_prime`` is a second opinion without these proofs: a randomised comparison modulo the prime
:math:`p = 2^{31}-1`, at the programs' real sizes.  The elements of the outputs are polynomials in the inputs.  If two
programs differ in an element, the difference is a nonzero polynomial of some degree *d*, and at a random point it is 0
modulo *p* with probability at most :math:`d/p` (unless *p* divides all its coefficients).  A function over the reals is
replaced by a random polynomial of degree 3, and a quotient by the field's quotient; *d* counts both.  Maxima compare
residues as integers, without a bound.

Sources: J. T. Schwartz, Fast probabilistic algorithms for verification of polynomial identities, JACM 27, 1980;
R. Zippel, Probabilistic algorithms for sparse polynomials, 1979.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import tensor_names
from einnet_explore.equivalence.assumptions import ROUNDED_OPERANDS, Assumptions, infinite_results, join_axioms
from einnet_explore.equivalence.program_diff import (
    EquationDefinitions,
    outermost_names,
    prove_scopes_equal,
    require_same_interface,
)
from einnet_explore.equivalence.reads import illegal_reads
from einnet_explore.equivalence.sampling import compare_on_samples
from einnet_explore.equivalence.term_multiset import Witness
from einnet_explore.equivalence.value_bounds import rounding_error
from einnet_explore.equivalence.verdict import (
    PROOF_KINDS,
    UNDECIDED_TEXT,
    Certificate,
    CertificateKind,
    weakest_certificate,
    weakest_kind,
)
from einnet_explore.interpreter.evaluation import Evaluation
from einnet_explore.interpreter.exact_arrays import (
    PRIME,
    Array,
    PrimeField,
    Residue,
    residue_of,
    residue_value,
    rounded_residue_of,
)
from einnet_explore.ir import Access, Apply, Const, Program, Scalar, Scope, Tensor
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import count_noun

MAX_ROUNDING_ERROR = 1e-6
"""Bound on the error of rounded constants, for inputs in [-1, 1], up to which programs are ``rounded``."""

MAX_RESIDUES = 1 << 23
"""Elements of an intermediate array of residues."""

UNBOUNDED_TEXT = "equal up to rounding of constants, without a bound on the error"
"""The text where rounded constants agree, and their error is unbounded or too large."""

MAX_EXACT_POINTS = 20_000_000
"""Grid points up to which two programs are evaluated as a whole; larger ones are evaluated in slices."""


def certify(
    before: Program, after: Program, *, exact_elements: int | None = MAX_EXACT_POINTS, seed: int = 0
) -> Certificate:
    """Certify that *after* computes every output of *before*, and that all its reads are legal.

    *exact_elements* bounds the grid points of an evaluation; larger programs are evaluated in slices.  If it is None,
    programs are not evaluated and an unproved pair is ``unknown``.  *seed* determines the random inputs.
    """
    if before == after:
        return Certificate("proved", "identical")
    try:
        require_same_interface(before, after)
    except Refused as wrong:
        return Certificate("false", "structure", counterexample=str(wrong))
    known = set(before.equations)
    for number, equation in enumerate(after.equations):
        for found in illegal_reads(equation.scope) if equation not in known else ():
            return Certificate("false", "illegal read", str(number), 0, f"{equation.name}: {found}")
    # Equations between are not evaluated if the outputs can be proved without.
    if exact_elements is not None and (proof := _certified(before, after, None, seed)).kind in PROOF_KINDS:
        return proof
    return _certified(before, after, exact_elements, seed)


def _certified(before: Program, after: Program, exact_elements: int | None, seed: int) -> Certificate:
    given = infinite_results((before.equations, after.equations))
    result = _compare_outputs(before, after, given, exact_elements, seed)
    if result.error and not (result.kind == "rounded" and result.error <= MAX_ROUNDING_ERROR):
        given = replace(given, may_round=False)
        # Samples cannot tell constants that differ in their last digits, and these are the only difference.
        points = None if result.kind == "rounded" else exact_elements
        result = _compare_outputs(before, after, given, points, seed)
        if result.kind == "exact" or (result.kind == "unknown" and points is None and exact_elements is not None):
            result = replace(result, kind="unknown", detail=UNBOUNDED_TEXT)
    return result


def _compare_outputs(before: Program, after: Program, given: Assumptions, points: int | None, seed: int) -> Certificate:
    """Compare the common equations; the certificate's error is positive if constants were rounded."""
    both = _AlignedPrograms(before, after, given, points, seed)
    found = _compare_equations(before, after, both)
    if not both.change:
        return found
    return replace(found, error=sum(rounding_error(program, both.change) for program in (before, after)))


def _compare_equations(before: Program, after: Program, both: _AlignedPrograms) -> Certificate:
    """Compare the common equations, in the order of *before*.

    Both sides of an equation are shown to be one function of the tensors they read; these are equal in both programs by
    induction, so the results are equal.
    """
    others = {e.name: e.scope for e in after.equations}
    known: set[str] = set()
    changed = {e.name for e in before.equations} | others.keys()
    results: list[Certificate] = []
    for number, equation in enumerate(before.equations):
        name, scope, other = equation.name, equation.scope, others.get(equation.name)
        if other is None or other.box != scope.box:
            continue
        if other != scope or not changed.isdisjoint(tensor_names(scope)):
            found = both.compare(name, number, known)
            if found is not None and not found.ok:
                if name not in before.outputs:
                    continue
                if found.kind == "false":
                    return found
            results += [] if found is None else [found]
        known.add(name)
        changed.discard(name)
    return weakest_certificate(results)


class _AlignedPrograms:
    """Two programs in which equations of one name are compared; if *points* is None, nothing is evaluated.

    *change* is the largest relative change of a rounded constant.
    """

    def __init__(self, before: Program, after: Program, given: Assumptions, points: int | None, seed: int) -> None:
        self.change = 0.0
        self._given = given
        self._outputs = before.outputs
        self._left, self._right = EquationDefinitions(before), EquationDefinitions(after)
        self._points, self._seed = points, seed

    def compare(self, name: str, number: int, kept: Set[str]) -> Certificate | None:
        """Compare the definitions of *name* as functions of the tensors *kept*; None if they are identical.

        Kept equations are inlined if that may help: all of them for an output, else only those that one side
        does not read; readers that need more inline the result itself.
        """
        kept = frozenset(kept)
        while True:
            one, other = self._left.scope(name, kept), self._right.scope(name, kept)
            if one == other:
                return None
            mine, theirs = set(tensor_names(one)), set(tensor_names(other))
            if hiding := kept & self._hiding(mine, theirs):
                kept -= hiding
                continue
            found = prove_scopes_equal(one, other, one.box, (number,), self._given)
            if isinstance(found, Certificate):
                self.change = max(self.change, found.error)
                return found
            # equations read by one side only, and possibly infinite ones, are inlined before an evaluation
            if odd := kept & ((mine ^ theirs) | (mine & theirs & self._given.infinite)):
                kept -= outermost_names(odd, (self._left, mine), (self._right, theirs))
                continue
            settled = _certify_by_evaluation(found, one, other, number, self._points, self._seed)
            free = kept & (mine | theirs)
            if settled.ok or name not in self._outputs or not free:
                return settled
            # compare again with these equations inlined
            kept -= free

    def _hiding(self, mine: Set[str], theirs: Set[str]) -> Set[str]:
        """Return the equations read by one side only that depend on the other side's reads."""
        return {
            n
            for definitions, own, others in ((self._left, mine, theirs), (self._right, theirs, mine))
            for n in own - others
            if not others.isdisjoint(definitions.made_of(n))
        }


def _certify_by_evaluation(
    why: str | Witness, before: Scope, after: Scope, number: int, points: int | None, seed: int
) -> Certificate:
    """Certify an unproved pair: by a decisive witness, or by evaluation unless *points* is None."""
    decisive = isinstance(why, Witness) and why.decisive
    if decisive:
        return Certificate("false", "term relation", str(number), 0, str(why))
    if points is None:
        return Certificate("unknown", "term relation", str(number), 0, str(why), UNDECIDED_TEXT)
    hints = (why.element, tuple(at for _, at in why.term)) if isinstance(why, Witness) else (None, ())
    sample = compare_on_samples(before, after, points, seed, *hints)
    if sample.error is not None:
        return Certificate("false", "evaluation", str(number), sample.elements, sample.error, str(why))
    if sample.differs is not None:
        element, expected, found = sample.differs
        told = f"element {list(element)} is {found}, expected {expected}"
        return Certificate("false", "evaluation", str(number), sample.elements, told, str(why))
    if sample.gap:
        return Certificate("unknown", "evaluation", str(number), sample.elements, None, sample.gap)
    return Certificate("exact", "evaluation", str(number), sample.elements, None, str(why))


Link: TypeAlias = "tuple[Program, Program, Certificate]"
"""The programs before and after a step, and their certificate."""


def compose_certificates(chain: Sequence[Link]) -> Certificate:
    """Compose the certificates of all steps of *chain* into one for its two ends.

    The certificate lists the ``program_hash`` of every program and the axioms used.  Raises ValueError if a step does
    not start from the result of the step before it.
    """
    if not chain:
        return Certificate("proved", "identical")
    programs = tuple(map(program_hash, (chain[0][0], *(after for _, after, _ in chain))))
    for n, (before, _, _) in enumerate(chain, 1):
        if program_hash(before) != programs[n - 1]:
            raise ValueError(
                f"step {n} starts from {program_hash(before)[:12]}, the step before ended in {programs[n - 1][:12]}"
            )
    certificates = [certificate for _, _, certificate in chain]
    for n, found in enumerate(certificates, 1):
        if not found.ok:
            where = f"step {n}: "
            reason = where + str(found.counterexample) if found.kind == "false" else None
            detail = where + found.detail if found.kind == "unknown" else ""
            return Certificate(found.kind, found.method, found.at, found.elements, reason, detail)
    counts = Counter(found.kind for found in certificates)
    kind = weakest_kind(counts)
    steps = f"{len(chain)} step{'' if len(chain) == 1 else 's'}, {counts['proved']} proved"
    steps += f", {counts['rounded']} rounded" if counts["rounded"] else ""
    needed = join_axioms(found.detail for found in certificates)
    elements, error = sum(found.elements for found in certificates), sum(found.error for found in certificates)
    detail = ", ".join(filter(None, (steps, needed)))
    return Certificate(kind, "composition", "", elements, None, detail, programs, error)


def certify_chain(chain: Sequence[Link], seed: int = 0) -> Certificate:
    """Certify the end of *chain* against its start.

    By direct proof or composition of proofs, whichever is stronger; else by evaluation of the ends, with *seed* for
    the random inputs.
    """
    if len(chain) <= 1:
        return chain[0][2] if chain else Certificate("proved", "identical")
    (start, _, _), (_, end, _) = chain[0], chain[-1]
    if any(ROUNDED_OPERANDS in step.detail for _, _, step in chain):
        return compose_certificates(chain)  # its ends are not equal
    whole = certify(start, end, exact_elements=None)
    if whole.kind in ("proved", "false"):
        return whole
    steps = compose_certificates(chain)
    if steps.kind == "proved" or whole.kind != "rounded":
        whole = steps
    return whole if whole.kind in PROOF_KINDS else certify(start, end, seed=seed)


def program_hash(program: Program) -> str:
    """Return the SHA-256 of the canonical key of *program*, invariant under iterator names and order."""
    return hashlib.sha256(repr(program_key(program)).encode()).hexdigest()


__all__ = [
    "MAX_EXACT_POINTS",
    "UNDECIDED_TEXT",
    "Certificate",
    "CertificateKind",
    "certify",
]


@dataclass(frozen=True, slots=True)
class ModularComparison:
    """Number of compared output elements, the first difference, and the probability that a wrong program passes.

    *bound* is None if a program contains a maximum or compares values.  *rounded*: the programs agree only with
    constants rounded to twelve digits.
    """

    elements: int
    degree: int
    bound: float | None
    differs: tuple[str, tuple[int, ...]] | None = None
    rounded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {"prime": PRIME, **asdict(self)}

    def __str__(self) -> str:
        if self.differs is not None:
            name, at = self.differs
            return f"differs modulo {PRIME}: {name}{list(at)}"
        chance = (
            "no bound (maxima)" if self.bound is None else f"a difference is missed with probability {self.bound:.1e}"
        )
        how = ", with constants rounded to 12 digits" if self.rounded else ""
        elements = count_noun(self.elements, "element")
        return f"equal modulo {PRIME}{how}, {elements} compared; {chance}, degree {self.degree}"


def compare_modulo_prime(before: Program, after: Program, *, rounds: int = 1, seed: int = 0) -> ModularComparison:
    """Compare the outputs on *rounds* random inputs; if they differ, compare again with rounded constants.

    Raises ValueError for an expression without a meaning modulo a prime (an infinity in a sum), IllegalRead for a read
    beyond the padding.
    """
    found = _compare_residues(before, after, rounds, seed, residue_of)
    if found.differs is None:
        return found
    rounded = _compare_residues(before, after, rounds, seed, rounded_residue_of)
    return found if rounded.differs is not None else replace(rounded, rounded=True)


def _compare_residues(before: Program, after: Program, rounds: int, seed: int, residue: Residue) -> ModularComparison:
    elements = 0
    top, bottom, ordered = (max(x) for x in zip(output_degree(before), output_degree(after), strict=True))
    total = top + bottom
    for n in range(rounds):
        random = np.random.default_rng((seed, n))
        inputs = {t.name: random.integers(0, PRIME, t.shape) for t in before.inputs}
        left, right = (program_residues(p, inputs, seed=seed + n, residue=residue) for p in (before, after))
        elements = 0
        for name in before.outputs:
            elements += left[name].size
            if left[name].shape != right[name].shape or not np.array_equal(left[name], right[name]):
                unlike = left[name] != right[name] if left[name].shape == right[name].shape else np.ones(1, bool)
                at = np.unravel_index(int(np.argmax(unlike)), np.shape(unlike))
                return ModularComparison(elements, total, 0.0, (name, tuple(map(int, at))))
    bound = None if ordered else min(1.0, (total / PRIME) ** rounds)
    return ModularComparison(elements, total, bound)


def program_residues(
    program: Program, inputs: Mapping[str, Array], *, seed: int = 0, residue: Residue = residue_of
) -> dict[str, Array]:
    """Return every output of *program*, also one that is an input, modulo ``PRIME``."""
    run = Evaluation(
        PrimeField(seed, residue),
        {name: residue_value(np.asarray(a, np.int64)) for name, a in inputs.items()},
        MAX_RESIDUES,
    )
    run.program(program)
    return {name: run.tensors[name][0].array for name in program.outputs}


def output_degree(program: Program) -> tuple[int, int, int]:
    """Bound the degrees of the outputs' numerators and denominators; third, 1 if the program compares values."""
    known = {t.name: (1, 0, 0) for t in program.inputs}
    for equation in program.equations:
        known[equation.name] = _scope_degree(equation.scope, known)
    tops, bottoms, ordered = zip(*(known[name] for name in program.outputs), strict=True)
    return max(tops), max(bottoms), max(ordered)


def _scope_degree(scope: Scope, known: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    top, bottom, ordered = _scalar_degree(scope.body, known)
    count = prod(y.extent for y in scope.summations)
    match scope.reduce:
        case "sum":
            return top + bottom * (count - 1), bottom * count, ordered
        case "prod":
            return top * count, bottom * count, ordered
    return top, bottom, 1


def _scalar_degree(body: Scalar, known: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    match body:
        case Access(Tensor(name)):
            return known[name]
        case Access(Scope() as scope):
            return _scope_degree(scope, known)
        case Apply("where", (_, yes, no)):
            pairs = zip(_scalar_degree(yes, known), _scalar_degree(no, known), strict=True)
            return tuple(map(max, pairs))  # type: ignore[return-value]
        case Apply(op, args):
            tops, bottoms, compares = zip(*(_scalar_degree(a, known) for a in args), strict=True)
            ordered = max(compares)
        case _:
            return 0, 0, 0
    match op, args:
        case "*", _:
            return sum(tops), sum(bottoms), ordered
        case "/", _:
            return tops[0] + bottoms[1], bottoms[0] + tops[1], ordered
        case (("+" | "-" | "neg"), _):
            return max(t - b for t, b in zip(tops, bottoms, strict=True)) + sum(bottoms), sum(bottoms), ordered
        case (("maximum" | "minimum"), _):
            return max(tops), max(bottoms), 1
        case "pow", (_, Const(value)) if 0 <= value == int(value):
            return tops[0] * int(value), bottoms[0] * int(value), compares[0]
    return 1 + 3 * (sum(tops) + sum(bottoms)), 3 * sum(bottoms), ordered
