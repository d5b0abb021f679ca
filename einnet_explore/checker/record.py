"""Record files: the JSON form of a derivation, read without rules and search."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.ir import Program, read_path
from einnet_explore.syntax import TextError, parse

FORMAT = "einnet-explore record"
VERSION = 1

RULE_NAMES = (
    "batch_merging", "bilinear_product", "bilinear_substitution", "blocked_generation",
    "boundary_relaxing", "boundary_tightening", "cancellation", "common_factor", "common_subexpression",
    "contraction_order", "dead_equation", "distributivity", "eoperator_generation", "expression_extraction",
    "expression_fusion", "expression_inlining", "expression_splitting", "homomorphism", "monotone_exchange",
    "one_pass_generation", "operator_matching", "part_extraction", "positive_scaling", "prefix_splitting", "recentring",
    "reduction_generation", "row_generation", "sibling_merging", "storage_layout", "summation_exchange",
    "summation_splitting", "traversal_factoring", "traversal_merging", "variable_substitution",
)  # fmt: skip
"""The rules that a step may name, without their definitions."""


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
    data = _object(record, source, "$")
    found = _get(data, "format", str, source, "$")
    if found != FORMAT:
        raise _mismatch(source, "$.format", repr(found), repr(FORMAT))
    version = _get(data, "version", int, source, "$")
    if version != VERSION:
        raise _mismatch(source, "$.version", str(version), str(VERSION))
    start = _program(_get(data, "start", str, source, "$"), source, "$.start")
    steps = _get(data, "steps", list, source, "$")
    return Record(start, tuple(_step(step, source, f"$.steps[{n}]") for n, step in enumerate(steps)))


def load_json(path: str | PathLike[str]) -> object:
    """Load the JSON file at *path*; raises OSError if it cannot be read, RecordError if it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise _mismatch(str(path), "$", f"byte {error.object[error.start]:#04x} at {error.start}", "UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise RecordError(f"{path}: $: expected JSON; at {where}: {error.msg}") from None
    except RecursionError:
        raise _mismatch(str(path), "$", "JSON that nests too deeply", "a record") from None
    except ValueError as error:
        raise RecordError(f"{path}: $: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raises ValueError for duplicate names, which JSON readers treat differently."""
    if len(found := dict(pairs)) < len(pairs):
        twice = next(name for n, (name, _) in enumerate(pairs) if any(name == other for other, _ in pairs[:n]))
        raise ValueError(f"found {twice!r} twice in one object, expected it once")
    return found


def _step(step: object, source: str, at: str) -> RecordedStep:
    data = _object(step, source, at)
    path = _get(data, "at", str, source, at)
    rule = _get(data, "rule", str, source, at)
    if not re.fullmatch(r"\w+", rule, re.ASCII):
        raise _mismatch(source, f"{at}.rule", ascii(rule), "the name of a rule")
    try:
        read_path(path)
    except ValueError as error:
        raise RecordError(f"{source}: {at}.at: {error}") from None
    certificate = data.get("certificate")
    try:
        held = None if certificate is None else Certificate.from_json(_object(certificate, source, f"{at}.certificate"))
    except ValueError as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{source}: {at}.certificate: {error}") from None
    return RecordedStep(
        rule,
        path,
        _object(_get(data, "params", dict, source, at), source, f"{at}.params"),
        _program(_get(data, "after", str, source, at), source, f"{at}.after"),
        held,
    )


def _program(text: str, source: str, at: str) -> Program:
    try:
        return parse(text, f"{source}: {at}")
    except TextError as error:
        raise RecordError(str(error)) from None


def _object(value: object, source: str, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(source, at, _kind(value), "an object")
    return value


def _get(data: Mapping[str, Any], key: str, expected: type, source: str, at: str) -> Any:
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
