r"""Families: one program for all sizes, derivations of it proved once, and instances with guards.

.. math::  \forall\, H \ge 3,\ C \equiv 0\ (4):\qquad E_0(H, C) = E_1(H, C) = \dots = E_n(H, C)

A derivation is found at one size and replayed at others; polynomials through its integers are a conjecture.  Then each
step is proved for all parameters at once, or the reason is reported.  ``family`` reads one from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from typing import Unpack

from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.ir import Program
from einnet_explore.operators.library import check_canonical
from einnet_explore.parametric import schema as display
from einnet_explore.parametric.assumptions import parse_assumptions
from einnet_explore.parametric.conjecture import (
    Conjecture,
    Replay,
    ReplayStep,
    conjecture,
    default_sizes,
    record_steps,
    sizes_text,
)
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.schema import Schema, instantiate_schema, literal_schema
from einnet_explore.parametric.step_proofs import (
    StepVerdict,
    check_operators,
    judge_step,
    prove_legal,
    with_least_sizes,
)
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
