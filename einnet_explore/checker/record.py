"""Record files: the JSON form of a derivation, read and replayed without rules and search.

A replay certifies every step again from the programs alone, and checks operator calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.equivalence.assumptions import assume_infinite_tensors, join_axioms
from einnet_explore.equivalence.certificate import Certificate, CertificateKind, certify_chain
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.equivalence.operand_rounding import ROUNDING_RULES, certify_step
from einnet_explore.equivalence.reads import illegal_reads
from einnet_explore.equivalence.term_multiset import term_difference
from einnet_explore.equivalence.verdict import PROOF_KINDS, weakest_kind
from einnet_explore.ir import (
    VIEW,
    Access,
    Attribute,
    Equation,
    Index,
    Instance,
    Program,
    Scope,
    Tensor,
    accesses,
    read_path,
)
from einnet_explore.operators.layout import strides_of
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import TextError, parse

FORMAT = "einnet-explore record"
VERSION = 1

COMPARISON = "comparison"
"""The step of the records of ``equal``: no rule made it."""

RULE_NAMES = (
    "batch_merging", "bilinear_product", "bilinear_substitution", "blocked_generation", "boundary_relaxing",
    "boundary_tightening", "cancellation", "common_factor", "common_subexpression", COMPARISON,
    "contraction_order", "dead_equation", "distributivity", "eoperator_generation", "expression_extraction",
    "expression_fusion", "expression_inlining", "expression_splitting", "homomorphism", "inverse",
    "known_quotient", "like_terms", "monotone_distribution", "monotone_exchange", "one_pass_generation",
    "operator_matching", "padding_exchange", "part_extraction", "polynomial_form", "positive_scaling",
    "prefix_splitting", "recentring", "reduction_generation", "requantisation", "row_generation", "sibling_merging",
    "storage_layout", "summation_exchange",
    "summation_splitting", "traversal_factoring", "traversal_merging", "variable_substitution",
)  # fmt: skip
"""The names that a step may have, without the rules' definitions: it is proved from its programs, whatever its name."""


class RecordError(ValueError):
    """A malformed record: ``FILE: JSON path: what was found, what was expected``."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded step: the rule's name, its place and parameters, the result, the certificate."""

    rule: str
    at: str
    params: Mapping[str, Any]
    after: Program
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class Record:
    """A well-formed record; its certificates are unchecked claims."""

    start: Program
    steps: tuple[RecordedStep, ...]


def read_record(record: object, source: str = "<record>") -> Record:
    """Read the programs and steps of *record*; raises RecordError for a malformed record."""
    data = require_object(record, source, "$")
    found = require_field(data, "format", str, source, "$")
    if found != FORMAT:
        raise _mismatch(source, "$.format", repr(found), repr(FORMAT))
    version = require_field(data, "version", int, source, "$")
    if version != VERSION:
        raise _mismatch(source, "$.version", str(version), str(VERSION))
    start = _program(require_field(data, "start", str, source, "$"), source, "$.start")
    steps = require_field(data, "steps", list, source, "$")
    return Record(start, tuple(_step(step, source, f"$.steps[{n}]") for n, step in enumerate(steps)))


def load_json(path: str | PathLike[str]) -> object:
    """Load the JSON file at *path*; raises OSError if it cannot be read, RecordError if it is not JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise _mismatch(str(path), "$", found, "a record in UTF-8") from None
    return read_json(text, str(path))


def read_json(text: str, source: str) -> object:
    """Return the JSON value that *text* writes; raises RecordError if it is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise RecordError(f"{source}: $: expected JSON; at {where}: {error.msg}") from None
    except RecursionError:
        raise _mismatch(source, "$", "JSON that nests too deeply", "a record") from None
    except ValueError as error:
        raise RecordError(f"{source}: $: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raises ValueError for duplicate names, which JSON readers treat differently."""
    if len(found := dict(pairs)) < len(pairs):
        twice = next(name for n, (name, _) in enumerate(pairs) if any(name == other for other, _ in pairs[:n]))
        raise ValueError(f"found {twice!r} twice in one object, expected it once")
    return found


def _step(step: object, source: str, at: str) -> RecordedStep:
    data = require_object(step, source, at)
    path = require_field(data, "at", str, source, at)
    rule = require_field(data, "rule", str, source, at)
    if not re.fullmatch(r"\w+", rule, re.ASCII):
        raise _mismatch(source, f"{at}.rule", ascii(rule), "the name of a rule")
    try:
        read_path(path)
    except ValueError as error:
        raise RecordError(f"{source}: {at}.at: {error}") from None
    certificate = data.get("certificate")
    try:
        claim = None if certificate is None else require_object(certificate, source, f"{at}.certificate")
        held = None if claim is None else Certificate.from_json(claim)
    except ValueError as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{source}: {at}.certificate: {error}") from None
    return RecordedStep(
        rule,
        path,
        require_object(require_field(data, "params", dict, source, at), source, f"{at}.params"),
        _program(require_field(data, "after", str, source, at), source, f"{at}.after"),
        held,
    )


def _program(text: str, source: str, at: str) -> Program:
    try:
        return parse(text, f"{source}: {at}")
    except TextError as error:
        raise RecordError(str(error)) from None


def require_object(value: object, source: str, at: str) -> dict[str, Any]:
    """Return the JSON object *value*, found *at* a JSON path of the file *source*; raises RecordError."""
    if not isinstance(value, dict):
        raise _mismatch(source, at, _kind(value), "an object")
    return value


def require_field(data: Mapping[str, Any], key: str, expected: type, source: str, at: str) -> Any:
    """Return the value of *key*, which has the type *expected*; raises RecordError otherwise."""
    if key not in data:
        raise _mismatch(source, f"{at}.{key}", "nothing", _KINDS[expected])
    value = data[key]
    if not isinstance(value, expected) or isinstance(value, bool):
        raise _mismatch(source, f"{at}.{key}", _kind(value), _KINDS[expected])
    return value


_KINDS = {str: "a string", int: "a number", list: "a list", dict: "an object"}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return next((name for kind, name in _KINDS.items() if isinstance(value, kind)), f"{value!r}")


def _mismatch(source: str, at: str, found: str, expected: str) -> RecordError:
    return RecordError(f"{source}: {at}: found {found}, expected {expected}")


Strides: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""The strides of views, by the views' names."""


def require_instance(
    equation: Equation, operators: tuple[Operator, ...] = OPERATORS, views: Strides = MappingProxyType({})
) -> None:
    """Raise Refused if *equation* differs from its instance.

    An operator's equation must be its canonical expression, with its attributes, of the tensors that the equation
    reads; those among *views* must have the strides that the operator expects.  A view must read one tensor, inside its
    box, at an address that is affine in the traversals.
    """
    via = equation.via
    if via is None or via.is_eoperator:
        return
    if via.operator == VIEW:
        _require_view(equation.scope, via)
    else:
        _require_call(equation.scope, via, operators, views)


def _require_view(scope: Scope, via: Instance) -> None:
    match scope:
        case Scope(summations=(), domain=(), body=Access(source=Tensor() as source) as access):
            for d, (index, (lo, hi)) in enumerate(zip(access.index, source.box, strict=True)):
                least, most = index.bounds
                if least < lo or most >= hi:
                    read = f"dimension {d} of {source.name} in [{least}, {most}]"
                    raise Refused(f"a view reads {read}, its elements lie in [{lo}, {hi})")
            address = flat_address(access)
            if not address.affine:
                raise Refused(f"address {address!r} is not affine")
            _require_address(scope, address, via)
        case _:
            raise Refused("a view reads one tensor, at every point of its box, and nothing else")


def _require_address(scope: Scope, address: Index, via: Instance) -> None:
    """Compare the view's offset and strides, if named, with *address*; traversals of extent 1 have no stride."""
    named = dict(via.attributes)
    found: dict[str, Attribute] = {
        "offset": address.evaluate(lambda x: x.lo),
        "strides": tuple(address.coefficient(x) for x in scope.traversals),
    }
    strides = named.get("strides")
    if isinstance(strides, tuple) and len(strides) == len(scope.traversals):
        found["strides"] = tuple(
            address.coefficient(x) if x.extent > 1 else said for x, said in zip(scope.traversals, strides, strict=True)
        )
    for name, value in found.items():
        if name in named and named[name] != value:
            raise Refused(f"a view with {name} {named[name]}, the address has {value}")


def _require_call(scope: Scope, via: Instance, operators: tuple[Operator, ...], views: Strides) -> None:
    operator = next((o for o in operators if via.operator in o.names), None)
    if operator is None:
        known = ", ".join(name for each in operators for name in each.names)
        raise Refused(
            f"unknown operator {via.operator}, expected one of {known}; "
            f"an operator of your own needs operators=, or --operator '{via.operator}: EXPRESSION'"
        )
    sources = [access.source for access in accesses(scope.body)]
    operands = [source for source in sources if isinstance(source, Tensor)]
    if len(operands) != len(sources):
        raise Refused(f"{via.operator} reads tensors, the equation reads a scope")
    expected = len(operator.pattern.operands)
    if len(operands) != expected:
        raise Refused(f"{via.operator} takes {expected} operands, the equation reads {len(operands)}")
    try:
        canonical = operator.instantiate(dict(via.attributes), operands)
    except ValueError as error:
        raise Refused(str(error)) from None
    for operand, source in zip(operator.pattern.operands, operands, strict=True):
        _require_strides(operator, operand.name, source, via, views)
    if canonical == scope:
        return
    if canonical.box != scope.box:
        raise Refused(f"{via!r} has shape {canonical.shape}, the equation {scope.shape}")
    try:
        witness = term_difference(canonical, scope, scope.box, assume_infinite_tensors(scope))
    except Undecided as beyond:
        raise Refused(f"{via!r} could not be compared with the equation: {beyond}") from None
    if witness is not None:
        raise Refused(f"{via!r} is another expression: {witness}")


def _require_strides(operator: Operator, operand: str, source: Tensor, via: Instance, views: Strides) -> None:
    """Compare the strides of *source* with those that the operator takes; extents of 1 have any stride.

    Rows of a *strided* operator's operand are as far apart as the attribute ``ld`` and its name says, batches any
    distance.
    """
    want: tuple[Attribute, ...] = row_major_strides(source.shape)
    held = views.get(source.name, want)
    if operator.strided:
        want = (*held[:-2], dict(via.attributes).get(f"ld{operand.lower()}", source.shape[-1]), 1)
    for d, extent in enumerate(source.shape):
        if extent > 1 and held[d] != want[d]:
            raise Refused(
                f"{via!r} takes {operand} with stride {want[d]} in dimension {d}, {source.name} has {held[d]}"
            )


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: the claimed kind (or None), the certificate found, and mismatched instances."""

    rule: str
    at: str
    claimed: CertificateKind | None
    certificate: Certificate
    instances: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the step holds."""
        return self.certificate.ok and not self.instances

    @property
    def kind(self) -> CertificateKind:
        """The certificate's kind; ``false`` if an instance differs from its operator."""
        return "false" if self.instances else self.certificate.kind

    @property
    def counterexample(self) -> str | None:
        """Return the error of the step."""
        return self.certificate.counterexample or next(iter(self.instances), None)

    def to_json(self) -> dict[str, Any]:
        """The step as plain JSON values."""
        return {
            "rule": self.rule,
            "at": self.at,
            "ok": self.ok,
            "claimed": self.claimed,
            "certificate": self.certificate.to_json(),
            "instances": list(self.instances),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a record: its steps one by one, and its end against its start.

    *start* says what is wrong with the first program itself (None: nothing).
    """

    source: str
    start: str | None
    steps: tuple[StepReport, ...]
    whole: Certificate

    @property
    def ok(self) -> bool:
        """Whether the end computes what the start does, by every step and as a whole."""
        return self.start is None and self.whole.ok and all(step.ok for step in self.steps)

    @property
    def kind(self) -> CertificateKind:
        """The record's certificate: its weakest step's, or the proof of the end against the start if that is better."""
        steps = weakest_kind(step.kind for step in self.steps)
        if self.start is not None or "false" in (steps, self.whole.kind):
            return "false"
        better = next((kind for kind in PROOF_KINDS if kind in (steps, self.whole.kind)), None)
        return better or weakest_kind((steps, self.whole.kind))

    @property
    def counterexample(self) -> str | None:
        """The first fault of the record; None if there is none."""
        if self.start is not None:
            return f"start: {self.start}"
        for number, step in enumerate(self.steps, 1):
            if not step.ok:
                return f"step {number} ({step.rule} at {step.at}): {step.counterexample}"
        return None if self.whole.ok else f"start to end: {self.whole.counterexample}"

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "record": self.source,
            "ok": self.ok,
            "kind": self.kind,
            "counterexample": self.counterexample,
            "steps": [step.to_json() for step in self.steps],
            "whole": self.whole.to_json(),
        }

    @property
    def verdict(self) -> str:
        """One line: the file, the record's certificate, and its first fault."""
        return f"{self.source}: {self.kind}" + (f": {self.counterexample}" if self.kind == "false" else "")

    def __str__(self) -> str:
        lines = [f"{n}. {step.rule} at {step.at}: {_result_text(step)}" for n, step in enumerate(self.steps, 1)]
        needed = self.whole.detail if self.whole.programs else join_axioms([self.whole.detail])
        how = ", ".join(filter(None, (self.whole.method, needed, _error_text(self.whole))))
        lines.append(f"start to end: {self.whole.kind} ({how})")
        return "\n".join([*lines, self.verdict])


def _result_text(step: StepReport) -> str:
    found = step.certificate
    how = ", ".join(filter(None, (found.method, join_axioms([found.detail]), _error_text(found))))
    return f"{step.kind} ({how})" + ("" if step.claimed in (None, step.kind) else f", claimed {step.claimed}")


def _error_text(certificate: Certificate) -> str:
    return certificate.error_text if certificate.kind == "rounded" else ""


def check_record(
    record: object,
    *,
    source: str = "<record>",
    operators: tuple[Operator, ...] = OPERATORS,
    rules: Collection[str] = RULE_NAMES,
    rounding: bool = False,
    seed: int = 0,
) -> Report:
    """Certify every step of *record* again, its instances, and its end against its start.

    *operators* are those that instances may name, *rules* the names that steps may have; *rounding* allows steps that
    round operands to bfloat16 (numerics of the level ``bf16``).  The record's claims are reported, but not trusted.
    Raises RecordError if *record* is malformed, or a step has another rule.
    """
    held = read_record(record, source)
    for n, step in enumerate(held.steps):
        if step.rule in ROUNDING_RULES:
            if not rounding:
                raise RecordError(
                    f"{source}: $.steps[{n}].rule: found {step.rule!r}, which rounds operands to bfloat16, expected an "
                    "equality (--numerics bf16, or rounding=True, allows it)"
                )
        elif step.rule not in rules:
            raise RecordError(
                f"{source}: $.steps[{n}].rule: found {step.rule!r}, expected one of {len(rules)} known rules; "
                f"another one is allowed by rules=, or --rule {step.rule}"
            )
    programs = (held.start, *(step.after for step in held.steps))
    faults = [tuple(instance_faults(program, operators)) for program in programs]
    start = next(chain(_illegal_reads(held.start), faults[0]), None)
    steps = tuple(
        _replay_step(step, before, tuple(fault for fault in new if fault not in old), seed)
        for step, before, (old, new) in zip(held.steps, programs, pairwise(faults), strict=False)
    )
    links = [(*ends, step.certificate) for ends, step in zip(pairwise(programs), steps, strict=True)]
    return Report(source, start, steps, certify_chain(links, seed))


def check_file(
    path: str | PathLike[str],
    *,
    operators: tuple[Operator, ...] = OPERATORS,
    rules: Collection[str] = RULE_NAMES,
    rounding: bool = False,
    seed: int = 0,
) -> Report:
    """Check the record in the file at *path*, as ``einnet-explore check`` does: every step is certified again.

    *rules* are the names that steps may have, and *operators* those that equations may call: pass those of your own in
    addition.  *rounding* allows steps that round operands to bfloat16.  The claims of the file are not trusted.  *seed*
    determines random inputs.  The report's ``ok`` and ``kind`` are the verdict.  Raises OSError if the file cannot be
    read, RecordError if it is malformed or has another rule.
    """
    return check_record(
        load_json(path), source=str(path), operators=operators, rules=rules, rounding=rounding, seed=seed
    )


def _replay_step(step: RecordedStep, before: Program, wrong: tuple[str, ...], seed: int) -> StepReport:
    claimed = None if step.certificate is None else step.certificate.kind
    return StepReport(step.rule, step.at, claimed, certify_step(step.rule, before, step.after, seed), wrong)


def _illegal_reads(program: Program) -> Iterable[str]:
    for equation in program.equations:
        yield from (f"{equation.name}: {wrong}" for wrong in illegal_reads(equation.scope))


def instance_faults(program: Program, operators: tuple[Operator, ...] = OPERATORS) -> Iterable[str]:
    """Yield how equations of *program* differ from their instances."""
    views = dict[str, tuple[int, ...]]()
    for equation in program.equations:
        try:
            require_instance(equation, operators, views)
            if equation.via is not None and equation.via.operator == VIEW:
                views[equation.name] = strides_of(equation.scope)
        except Refused as why:
            yield f"{equation.name}: {why}"
