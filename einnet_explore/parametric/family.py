r"""Families: one program for all sizes, derivations of it proved once, and instances with guards.

.. math::  \forall\, H \ge 3,\ C \equiv 0\ (4):\qquad E_0(H, C) = E_1(H, C) = \dots = E_n(H, C)

A derivation is found at one size and replayed at others; polynomials through its integers are a conjecture.  Then each
step is proved for all parameters at once, or the reason is reported.  ``family`` reads one from text.

A step is proved for all sizes, refuted at some sizes, or unproved.  A proof covers shapes, reads and values of whole
programs, as in ``equivalence.certificate``: equations are aligned by name, an equation of only one program is inlined
into its readers, and a common equation remains a tensor as long as the proof succeeds.  ``check_operators`` compares an
equation with the view or operator call that implements it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from typing import Literal, TypeAlias, Unpack

from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.assumptions import Assumptions, assume_infinite_tensors, infinite_results
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.linear_space import Form, Undecided, complement, scope_conditions, with_summations
from einnet_explore.equivalence.program_diff import differing_scopes, inline_equations
from einnet_explore.equivalence.reads import guarded_accesses
from einnet_explore.ir import (
    VIEW,
    Access,
    Box,
    Equation,
    Instance,
    Program,
    Scope,
    Table,
    Tensor,
    accesses,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS, check_canonical
from einnet_explore.parametric import schema as display
from einnet_explore.parametric.assumptions import parse_assumptions
from einnet_explore.parametric.comparison import Difference, FamilyProver, find_solution, solution_text
from einnet_explore.parametric.conjecture import (
    Conjecture,
    Replay,
    ReplayStep,
    conjecture,
    default_sizes,
    record_steps,
    sizes_text,
)
from einnet_explore.parametric.parameters import FamilyParameters, polynomial_form
from einnet_explore.parametric.schema import Schema, canonical_scope, instantiate_schema, literal_schema
from einnet_explore.parametric.size_polynomials import add_forms, form_text
from einnet_explore.parametric.space import ParametricSpace
from einnet_explore.rules import Derivation
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import SearchOptions, options_by_name
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import TextError
from einnet_explore.syntax.parametric_text import Template, parse_template
from einnet_explore.syntax.parser import text_of
from einnet_explore.viz.tables import DisplayedAsTable, TextTable

StepVerdictKind: TypeAlias = Literal["proved", "refuted", "unproved"]


@dataclass(frozen=True, slots=True)
class FamilyInstance:
    """A family's derivation at *sizes*: its first and last program, and their certificate."""

    sizes: tuple[tuple[str, int], ...]
    start: Program
    program: Program
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class Family:
    """A program whose sizes are polynomials of parameters, with assumptions on the parameters."""

    template: Template
    ground: FamilyParameters

    @property
    def guards(self) -> tuple[str, ...]:
        """The assumptions, in the text form."""
        return self.ground.guards

    def at(self, **sizes: int) -> Program:
        """Return the program at *sizes*; raises Refused, or TextError if the text is invalid there."""
        self.ground.refuse(sizes)
        return self.written(sizes)

    def written(self, sizes: Mapping[str, int]) -> Program:
        """Return the program at *sizes* without checking the assumptions."""
        return self.template.at(self.ground.declared_sizes(sizes))

    @property
    def schema(self) -> Schema:
        """The literal program, with polynomials for its integers; raises Undecided."""
        return literal_schema(self.template, self.ground)

    @renamed_argument("limit", "budget")
    def derive(
        self,
        target: str | Iterable[str] = (),
        budget: float | None = 60,
        sizes: Mapping[str, int] | None = None,
        **options: Unpack[SearchOptions],
    ) -> FamilyDerivation:
        """Search at *sizes* (by default primes) and lift the best derivation to all sizes.

        *target*, *budget* and *options* are those of ``ee.search``; with a target, only derivations that call a library
        operator count.  Raises Refused for sizes that violate an assumption and for a derivation that does not carry
        over, ValueError if the search finds no program.
        """
        sizes = dict(sizes) if sizes is not None else default_sizes(self.ground)
        run = Run(self.at(**sizes), program_seconds, target=target, budget=budget, options=options_by_name(options))
        for _ in run:
            pass
        # with a target, a candidate has to call a library operator
        found = [c for c in run.candidates if c.operators or not run.target]
        if not found:
            wanted = f" with {' or '.join(run.target)}" if run.target else ""
            raise ValueError(
                f"the search at {sizes_text(sizes)} found no program{wanted}: more time, or other sizes, may help"
            )
        best = min(found, key=lambda c: (c.seconds, len(c.derivation.steps)))
        return self.lift(best.derivation, sizes)

    def lift(self, derivation: Derivation, sizes: Mapping[str, int]) -> FamilyDerivation:
        """Lift *derivation*, found at *sizes* by a search or in a session, to all sizes.

        Further assumptions are inferred: remainders from the sizes at which it can be replayed, minimum sizes from its
        proof.  Raises ValueError if it starts from another program, Refused if it does not carry over.
        """
        self.ground.refuse(sizes)
        if derivation.start != self.written(sizes):
            raise ValueError(f"the derivation starts at another program than the family at {dict(sizes)}")
        steps, sizes = record_steps(derivation), self.ground.with_quotients(sizes)
        made = conjecture(self.ground, sizes, Replay(self.written, steps, sizes).at)
        ground, proof = _prove_steps(self.template, made, sizes, steps)
        return FamilyDerivation(self, ground, made.schemas, proof, steps)

    def equals(self, other: Family) -> StepVerdict:
        """Compare with *other* at all sizes that both families allow; raises ValueError as ``common_ground`` does."""
        ground = self.common_ground(other)
        return judge_step(ground, literal_schema(self.template, ground), literal_schema(other.template, ground))

    def common_ground(self, other: Family) -> FamilyParameters:
        """Return the parameters with the assumptions of both families.

        Raises ValueError for other parameters, and if no sizes fulfil all assumptions.
        """
        if sorted(self.ground.names) != sorted(other.ground.names):
            raise ValueError(
                f"the second family has the parameters {', '.join(other.ground.names)}, expected those of the first: "
                f"{', '.join(self.ground.names)}"
            )
        both = (*self.template.assumptions, *other.template.assumptions)
        try:
            return parse_assumptions(replace(self.template, assumptions=both))
        except TextError as why:
            raise ValueError(f"the assumptions of both families do not hold together: {why.message}") from None

    def text(self) -> str:
        """The program in the text form; ``ee.family`` reads it."""
        return display.schema_text(self.ground, self.schema)

    def latex(self) -> str:
        """The program in LaTeX."""
        return display.schema_latex(self.schema)

    def __repr__(self) -> str:
        return f"<Family for {', '.join(self.guards)}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/latex": f"$\\displaystyle {self.latex()}$", "text/plain": self.text()}


def family(text: str, source: str = "<text>", *, assume: Sequence[str] = ()) -> Family:
    """Parse a family from *text* with its ``param`` lines; *assume* adds assumptions in the same form.

    *source* is the name of the text in errors.

    Raises TextError, with line and column, for invalid text, for an assumption that leaves no sizes, for an assumption
    on an unknown parameter, and if the program is invalid at the smallest allowed sizes.
    """
    first = text.count("\n") + 2
    lines = [text, *(f"param {' '.join(one.split())}" for one in assume)]
    try:
        known = parse_template(text, source).names
        template = parse_template("\n".join(lines), source)
        for a in template.assumptions:
            if odd := [name for name in a.names if name not in known]:
                raise template.refuse(a, f"found unknown parameter {odd[0]}, expected one of {', '.join(known)}")
        made = Family(template, parse_assumptions(template))
    except TextError as error:
        if error.line < first:
            raise
        shown = f"assumption {assume[error.line - first]!r}"
        raise TextError(shown, 1, max(1, error.column - len("param ")), error.message) from None
    ground = made.ground
    for unknowns in filter(None, (ground.corner(), ground.corner(1))):
        sizes = ground.sizes(unknowns)
        try:
            ground.refuse(ground.declared_sizes(sizes))
        except Refused:
            continue
        made.written(sizes)
    return made


def load_family(path: str | PathLike[str], *, assume: Sequence[str] = ()) -> Family:
    """Read the family in the file at *path*; *assume* adds assumptions.

    Raises OSError if the file cannot be read, and TextError like ``family``.
    """
    return family(text_of(path), str(path), assume=assume)


@dataclass(frozen=True, slots=True)
class FamilyDerivation:
    """A derivation for all sizes: the schemas from first to last program, and the verdicts on its steps."""

    family: Family
    ground: FamilyParameters
    schemas: tuple[Schema, ...]
    proof: FamilyProof
    steps: tuple[ReplayStep, ...]

    @property
    def guards(self) -> tuple[str, ...]:
        """All assumptions: the family's and the inferred ones."""
        return self.ground.guards

    @property
    def inferred(self) -> tuple[str, ...]:
        """The assumptions that the derivation adds to the family's."""
        return tuple(guard for guard in self.guards if guard not in self.family.guards)

    def prove(self) -> FamilyProof:
        """Return the verdicts on all steps."""
        return self.proof

    def instantiate(self, **sizes: int) -> FamilyInstance:
        """Return the programs at *sizes*, with their certificate.

        Raises Refused, with the violated assumption and the numbers; ValueError if the last program differs from what
        its operators compute.
        """
        self.ground.refuse(sizes)
        start, end = (instantiate_schema(self.schemas[n], self.ground.with_quotients(sizes)) for n in (0, -1))
        written = self.family.written(sizes)
        if written != start and not (same := certify(written, start)).ok:
            raise ValueError(f"the text at {sizes} is another program: {same}")
        for equation in end.equations:
            check_canonical(equation)
        if self.proof.kind == "proved":
            detail = f"for all sizes with {', '.join(self.guards)}, by {' and '.join(self.proof.means) or 'identity'}"
            certificate = Certificate("proved", "composition", detail=detail)
        else:
            certificate = certify(written, end)
        return FamilyInstance(tuple(sizes.items()), written, end, certificate)

    def text(self, n: int = -1) -> str:
        """The *n*-th program (the last by default) in the text form."""
        return display.schema_text(self.ground, self.schemas[n])

    def latex(self, n: int = -1) -> str:
        """The *n*-th program (the last by default) in LaTeX."""
        return display.schema_latex(self.schemas[n])

    def align(self) -> str:
        """The derivation as an ``align*`` block."""
        return display.schema_align(self.schemas, [step.rule for step in self.steps])

    def __repr__(self) -> str:
        return f"<Derived in {count_noun(len(self.steps), 'step')}, {self.proof}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/latex": f"$\\displaystyle {self.latex()}$", "text/plain": self.text()}


def _prove_steps(
    template: Template, made: Conjecture, found: Mapping[str, int], steps: Sequence[ReplayStep]
) -> tuple[FamilyParameters, FamilyProof]:
    """Raise the minimum sizes until the steps can be proved; return the parameters and the verdicts."""
    schemas = made.schemas
    ground = with_least_sizes(made.ground, found, pairwise(schemas))
    verdicts = [_prove_start(template, ground, schemas[0])]
    for before, after in pairwise(schemas):
        verdict = judge_step(ground, before, after)
        if verdict.kind == "proved":
            try:
                check_operators(ground, after)
            except Refused as why:
                verdict = replace(verdict, kind="unproved", why=str(why))
        verdicts.append(verdict)
    return ground, FamilyProof(ground, ("start", *(step.rule for step in steps)), tuple(verdicts))


def _prove_start(template: Template, ground: FamilyParameters, schema: Schema) -> StepVerdict:
    """Compare the interpolated *schema* with the text's literal one, and prove its reads legal."""
    try:
        written = literal_schema(template, ground)
    except Undecided as why:
        return StepVerdict("unproved", why=str(why))
    verdict = judge_step(ground, written, schema)
    if verdict.kind != "proved":
        return verdict
    reads = prove_legal(ground, written)
    return replace(reads, means=tuple(sorted({*verdict.means, *reads.means})))


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verdict on a step at all allowed sizes.

    ``proved``, by *means* (``isl``, ``z3``, ``digits``; none for an identity); ``refuted``, with *sizes* at which it is
    wrong and the *certificate* there; or ``unproved``, with the reason *why*.
    """

    kind: StepVerdictKind
    means: tuple[str, ...] = ()
    why: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    certificate: Certificate | None = None

    def __str__(self) -> str:
        match self.kind:
            case "proved":
                return f"proved for all sizes ({', '.join(self.means) or 'identity'})" + (self.why and f", {self.why}")
            case "refuted":
                return f"refuted at {sizes_text(dict(self.sizes))}: {self.certificate}"
            case _:
                return f"unproved: {self.why}"


def prove_step(ground: FamilyParameters, before: Schema, after: Schema) -> tuple[StepVerdict, tuple[int, ...]]:
    """Prove a step; return ``proved`` or ``unproved``, and the unknowns at which terms differ, if found."""
    prover = FamilyProver(ground, set())
    try:
        _check_shapes(ground, before, after)
        _check_reads(ground, before, after, prover)
    except (Refused, Undecided) as why:
        return StepVerdict("unproved", (), str(why)), ()
    given = infinite_results((before.equations, after.equations))
    found = _output_difference(before, after, prover, given)
    if found is None:
        return StepVerdict("proved", tuple(sorted(prover.means))), ()
    scopes_of = ([e.scope for e in p.equations] for p in (before, after))
    for more in given.axioms(*scopes_of):
        if more.rounding is None and _output_difference(before, after, prover, more) is None:
            return StepVerdict("proved", tuple(sorted(prover.means)), more.named), ()
    return StepVerdict("unproved", tuple(sorted(prover.means)), found.why), found.unknowns


def prove_legal(ground: FamilyParameters, schema: Schema) -> StepVerdict:
    """Prove that *schema* has no empty range, no negative size and no read beyond its reach, at all sizes."""
    prover = FamilyProver(ground, set())
    try:
        _check_shapes(ground, schema, schema)
        _check_reads(ground, replace(schema, equations=()), schema, prover)
    except (Refused, Undecided) as why:
        return StepVerdict("unproved", why=str(why))
    return StepVerdict("proved", tuple(sorted(prover.means)), "all its reads are legal")


def _check_shapes(ground: FamilyParameters, before: Schema, after: Schema) -> None:
    """Raise Refused if interfaces differ, a range may be empty, a padding negative, or a tensor is not defined."""
    if before.outputs != after.outputs:
        raise Refused(f"outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}")
    if strange := [t.name for t in after.inputs if t not in before.inputs]:
        raise Refused(f"input {strange[0]} is another one")
    for t in after.inputs:
        for n in t.shape:
            if not ground.is_nonnegative(polynomial_form(n - 1)):
                raise Refused(f"{t.name}: whether it has elements along a dimension of {n} depends on the sizes")
        for n in (n for pair in t.padding for n in pair):
            if not ground.is_nonnegative(polynomial_form(n)):
                raise Refused(f"{t.name}: whether the padding {n} is negative depends on the sizes")
    defined = {t.name: t for t in after.inputs}
    for equation in after.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if not ground.is_nonnegative(polynomial_form(x.hi - x.lo - 1)):
                    raise Refused(
                        f"{equation.name}: whether the range [{x.lo}, {x.hi}) of {x.name} is empty depends on the sizes"
                    )
            for edge in (n for pair in scope.padding for n in pair):
                if not ground.is_nonnegative(polynomial_form(edge)):
                    raise Refused(f"{equation.name}: whether the padding {edge} is negative depends on the sizes")
        for t in tensors(equation.scope):
            source = defined.get(t.name)
            if source is None:
                raise Refused(f"{equation.name} reads {t.name}, which is no input and no earlier equation")
            if replace(source, weight=t.weight) != t:
                raise Refused(f"{equation.name} reads {t.name} with another shape or padding than it has")
        if equation.name in defined:
            raise Refused(f"{equation.name} is defined twice")
        defined[equation.name] = equation.tensor
    boxes = {e.name: e.scope.box for e in before.equations}
    for name in before.outputs:
        if name in boxes and (name not in defined or defined[name].box != boxes[name]):
            raise Refused(f"output {name} has another box")


def _check_reads(ground: FamilyParameters, before: Schema, after: Schema, prover: FamilyProver) -> None:
    """Raise Refused if an equation that is new in *after* may read beyond a source's reach, at some sizes."""
    for equation in after.equations:
        if equation not in before.equations:
            for _, scope in scopes(equation.scope):
                try:
                    _check_scope_reads(ground, scope, prover)
                except Refused as why:
                    raise Refused(f"{equation.name}: {why}") from None


def _check_scope_reads(ground: FamilyParameters, scope: Scope, prover: FamilyProver) -> None:
    space = ParametricSpace(ground, scope.box, lambda a, b: False)
    env, inside = scope_conditions(space, scope, space.point)
    if inside is None:
        return
    env, _ = with_summations(space, scope, env)
    for access, guards in guarded_accesses(space, scope.body, env, inside):
        if len(access.index) != len(access.source.shape):
            raise Refused(f"{access!r} has {len(access.index)} indices, expected {len(access.source.shape)}")
        at = tuple(space.form(i, env) for i in access.index)
        for beyond in complement(space.within(at, access.source.reach)):
            found = find_solution(space, (*guards, *beyond))
            prover.means |= space.solvers
            if found is not None:
                raise Refused(f"{_source_text(access)} may be read outside its reach, at {solution_text(found)}")


def _source_text(access: Access) -> str:
    match access.source:
        case Tensor(name):
            return name
        case Table():
            return "a table"
        case _:
            return "a scope"


def _output_difference(before: Schema, after: Schema, prover: FamilyProver, given: Assumptions) -> Difference | None:
    boxes = {e.name: e.scope.box for e in before.equations}
    others = {e.name: e.scope.box for e in after.equations}
    kept = {n for n, box in boxes.items() if box == others.get(n)}
    if strange := [n for n in before.outputs if n in boxes and n not in kept]:
        return Difference(f"output {strange[0]} has another box")
    while True:
        left, right = inline_equations(before, kept), inline_equations(after, kept)
        for name in (n for n in boxes if n in kept):
            try:
                why = _scope_difference(prover, left[name], right[name], left[name].box, given)
            except Undecided as beyond:
                why = Difference(str(beyond))
            if why is not None:
                break
        else:
            return None
        one, other = ({t.name for t in tensors(side[name])} & kept for side in (left, right))
        opened = (one ^ other) or (one | other if name in before.outputs else {name})
        if not opened:
            return replace(why, why=f"{name}: {why.why}")
        kept -= opened


def _scope_difference(
    prover: FamilyProver, before: Scope, after: Scope, region: Box, given: Assumptions
) -> Difference | None:
    """Compare two scopes on *region*, the smallest differing sub-scopes first; None if they are equal."""
    if before == after:
        return None
    if inner := differing_scopes(before, after):
        try:
            if all(a.reach == b.reach and _scope_difference(prover, a, b, a.reach, given) is None for _, a, b in inner):
                return None
        except Undecided:
            pass
    return prover.difference(before, after, region, given)


def check_operators(ground: FamilyParameters, schema: Schema) -> None:
    """Raise Refused, with the reason, unless every equation is proved equal to its implementation."""
    for equation in schema.equations:
        via = equation.via
        if via is None or via.is_eoperator:
            continue
        try:
            if via.operator == VIEW:
                _check_view(ground, equation.scope, via)
            else:
                _check_call(ground, equation, via)
        except (Undecided, ValueError) as why:
            raise Refused(f"{equation.name} via {via.operator}: {why}") from None


def _check_view(ground: FamilyParameters, scope: Scope, via: Instance) -> None:
    """Compare a view's address with its offset and the stride of each traversal."""
    match scope:
        case Scope(traversals=own, summations=(), domain=(), body=Access(Tensor(shape=shape), index)):
            pass
        case _:
            raise Refused("a view reads one tensor, and nothing else")
    space = ParametricSpace(ground, scope.box, lambda a, b: False)
    # a traversal of extent 1 has no stride
    env = {x: polynomial_form(x.lo) if x.extent == 1 else point for x, point in zip(own, space.point, strict=True)}
    address: Form = {"": 0}
    stride: Form = {"": 1}
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        address = add_forms(address, space.times(space.form(i, env), stride))
        stride = space.times(stride, polynomial_form(extent))
    named = dict(via.attributes)
    offset, strides = named.get("offset"), named.get("strides")
    if isinstance(offset, str | tuple | None) or not isinstance(strides, tuple) or len(strides) != len(own):
        raise Refused(f"the view has offset {offset} and strides {strides}, expected {len(own)} strides")
    expected = polynomial_form(offset)
    for x, n in zip(own, strides, strict=True):
        expected = add_forms(expected, space.times(polynomial_form(n), add_forms(env[x], polynomial_form(x.lo), -1)))
    if address != expected:
        raise Refused(f"the view's address is {form_text(expected)}, the equation reads at {form_text(address)}")


def _check_call(ground: FamilyParameters, equation: Equation, via: Instance) -> None:
    """Compare a call with its operator's canonical expression."""
    operator = next((o for o in OPERATORS if via.operator in o.names), None)
    if operator is None:
        raise Refused("no operator of that name is known")
    operands = [access.source for access in accesses(equation.scope.body)]
    canonical = canonical_scope(operator, via, operands)
    if canonical.box != equation.scope.box:
        raise Refused(f"its result has the box {canonical.box}, the equation {equation.scope.box}")
    given = assume_infinite_tensors(equation.scope)
    found = FamilyProver(ground, set()).difference(canonical, equation.scope, equation.scope.box, given)
    if found is not None:
        raise Refused(found.why)


TRIED_SIZES = 3
"""Sizes of a parameter, from the smallest, at which an unproved step is tested."""


@dataclass(frozen=True, slots=True, repr=False)
class FamilyProof(DisplayedAsTable):
    """The verdicts on the steps of a derivation at all sizes that *ground* allows."""

    ground: FamilyParameters
    rules: tuple[str, ...]
    verdicts: tuple[StepVerdict, ...]

    @property
    def kind(self) -> str:
        """``proved`` if all steps are proved, ``refuted`` if one is refuted, else ``unproved``."""
        kinds = {v.kind for v in self.verdicts}
        return next((kind for kind in ("refuted", "unproved") if kind in kinds), "proved")

    @property
    def means(self) -> tuple[str, ...]:
        """The methods used: ``isl``, ``z3``, ``digits``."""
        return tuple(sorted({m for v in self.verdicts for m in v.means}))

    def table(self) -> TextTable:
        """Return a table with one row per step."""
        rows = ((str(n), rule, str(v)) for n, (rule, v) in enumerate(zip(self.rules, self.verdicts, strict=True), 1))
        return TextTable(("", "step", "for all sizes"), tuple(rows), str(self))

    def __str__(self) -> str:
        return f"{self.kind} for {', '.join(self.ground.guards)}"


def judge_step(ground: FamilyParameters, before: Schema, after: Schema) -> StepVerdict:
    """Prove that *after* equals *before* at all sizes, or search for sizes at which it does not.

    A refuted step has a false certificate at single sizes.
    """
    found, unknowns = prove_step(ground, before, after)
    if found.kind == "proved":
        return found
    for sizes in _suspect_sizes(ground, unknowns):
        certificate = _certify_at(before, after, sizes)
        if certificate is not None and certificate.kind == "false":
            return replace(
                found, kind="refuted", sizes=tuple(ground.declared_sizes(sizes).items()), certificate=certificate
            )
    return found


def _suspect_sizes(ground: FamilyParameters, unknowns: tuple[int, ...]) -> Iterable[dict[str, int]]:
    """Yield test sizes, small ones first: the smallest, slightly larger ones, and those at which terms differed."""
    first = ground.corner() or tuple(p.first for p in ground.parameters)
    tried = [unknowns] if unknowns else []
    tried.append(first)
    for more in range(1, TRIED_SIZES):
        tried.append(tuple(u + more for u in first))
        tried += [tuple(u + more * (n == i) for i, u in enumerate(first)) for n in range(len(first))]
    for us in sorted(dict.fromkeys(tried), key=sum):
        sizes = ground.sizes(us)
        try:
            ground.refuse(sizes)
        except Refused:
            continue
        yield sizes


def _certify_at(before: Schema, after: Schema, sizes: dict[str, int]) -> Certificate | None:
    """Certify a step at *sizes*; None if the first program is invalid there."""
    try:
        one = instantiate_schema(before, sizes)
        _check_ranges(one)
    except ValueError:
        return None
    try:
        other = instantiate_schema(after, sizes)
        _check_ranges(other)
    except ValueError as why:
        return Certificate("false", "structure", counterexample=str(why))
    try:
        return certify(one, other)
    except Undecided:
        return None


def _check_ranges(program: Program) -> None:
    """Raise Refused for an empty range or a negative padding."""
    for equation in program.equations:
        for _, scope in scopes(equation.scope):
            for x in (*scope.traversals, *scope.summations):
                if x.hi <= x.lo:
                    raise Refused(f"{equation.name}: the range [{x.lo}, {x.hi}) of {x.name} is empty")
            if any(n < 0 for pair in scope.padding for n in pair):
                raise Refused(f"{equation.name}: the padding {scope.padding} is negative")


def with_least_sizes(
    ground: FamilyParameters, found: Mapping[str, int], steps: Iterable[tuple[Schema, Schema]]
) -> FamilyParameters:
    """Raise the minimum sizes, up to those *found*, until each of *steps* is proved that can be."""
    enough = [found[p.name] for p in ground.parameters]
    for before, after in steps:
        if prove_step(ground, before, after)[0].kind != "proved":
            ground = raise_least_sizes(ground, enough, before, after) or ground
    return ground


def raise_least_sizes(
    ground: FamilyParameters, enough: Iterable[int], before: Schema, after: Schema
) -> FamilyParameters | None:
    """Raise the minimum sizes, up to *enough*, until the step is proved; None if it is not.

    The parameters are minimised one after another.
    """

    def at_least(sizes: Iterable[int]) -> FamilyParameters:
        parameters = (replace(p, least=least) for p, least in zip(ground.parameters, sizes, strict=True))
        return replace(ground, parameters=tuple(parameters))

    def is_proved(sizes: Iterable[int]) -> bool:
        return prove_step(at_least(sizes), before, after)[0].kind == "proved"

    least = [max(p.least, n) for p, n in zip(ground.parameters, enough, strict=True)]
    if not is_proved(least):
        return None
    for n, p in enumerate(ground.parameters):
        low, high = p.least, least[n]
        while low < high:
            middle = (low + high) // 2
            if is_proved([*least[:n], middle, *least[n + 1 :]]):
                high = middle
            else:
                low = middle + 1
        least[n] = high
    return at_least(least)
