"""Certificate values: two programs are equal, and by which method, or differ at an element."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from math import inf
from typing import Any, Literal, TypeAlias, get_args

from einnet_explore.equivalence.assumptions import ROUNDED_OPERANDS, join_axioms
from einnet_explore.support.wording import AMBER, GREEN, RED, count_noun, hue_style

CertificateKind: TypeAlias = Literal["proved", "rounded", "exact", "unknown", "false"]
"""The verdicts, from the strongest to the weakest."""

PROOF_KINDS = ("proved", "rounded")
"""Kinds that hold for every input."""

UNSOUND_KINDS = ("unknown", "false")
"""Kinds of derivations that are never kept."""

MIXED_TEXT = "some parts are equal up to rounding of constants only, others on random inputs only"
"""The text of a combination of ``rounded`` and ``exact``."""

UNDECIDED_TEXT = "not proved, and not evaluated"
"""The text of a certificate that neither proves nor refutes equality."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of a comparison of two programs.

    The *kind* is one of

    * ``proved``: equal for every input;
    * ``rounded``: proved up to rounding of constants; outputs differ by at most *error* for inputs in [-1, 1]; or up
      to rounding of operands to bfloat16, in a step that rounds them;
    * ``exact``: not proved; *elements* output elements are equal on random inputs that leave no gap: they reach every
      piece of the functions, and depend on every operand and constant;
    * ``unknown``: not proved; the random inputs leave a gap, named by *detail*, or nothing was evaluated;
    * ``false``: *counterexample* names an output element and the error in it.

    *method*: ``identical``, ``term relation``, ``composition``, ``evaluation``, ``structure`` or ``illegal read``.
    *at*: the path of the scope that was compared, in the first program (for an illegal read: the equation of the
    second).  *programs*: for a composition, the ``program_hash`` of each program in order.
    """

    kind: CertificateKind
    method: str
    at: str = ""
    elements: int = 0
    counterexample: str | None = None
    detail: str = ""
    programs: tuple[str, ...] = ()
    error: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the programs agree, by proof or on random inputs without a gap."""
        return self.kind not in UNSOUND_KINDS

    def __bool__(self) -> bool:
        """Whether equality is proved, up to rounding."""
        return self.kind in PROOF_KINDS

    @property
    def why(self) -> str:
        """The reason, such as the counterexample."""
        return str(self).partition(": ")[2]

    def __str__(self) -> str:
        match self.kind:
            case "proved" if self.programs:
                return f"proved ({self.method} of {self.detail}): equal for every input, in exact arithmetic"
            case "rounded":
                of = f"of {self.detail}" if self.programs else join_axioms([self.detail])
                return f"rounded ({self.method} {of}): {self.rounding_text}"
            case "exact" if self.programs:
                return f"exact ({self.method} of {self.detail}): some were evaluated on random inputs, not proved"
            case "proved":
                needed = join_axioms([self.detail])
                axioms = needed and f", {needed}"
                return f"proved ({self.method}): equal for every input, in exact arithmetic{axioms}"
            case "exact":
                compared = f"{count_noun(self.elements, 'element')} compared"
                return f"exact ({self.method}): not proved, but equal on random inputs, {compared}"
            case "unknown":
                return f"unknown ({self.method}): {self.detail}"
            case _:
                return f"false ({self.method}): {self.counterexample or 'no counterexample is given'}"

    @property
    def rounding_text(self) -> str:
        """The meaning of a ``rounded`` certificate."""
        rounded = ["constants"] if self.error or ROUNDED_OPERANDS not in self.detail else []
        rounded += ["operands"] if ROUNDED_OPERANDS in self.detail else []
        return f"equal up to rounding of {' and '.join(rounded)}, {self.error_text}"

    @property
    def error_text(self) -> str:
        """The bound of a ``rounded`` certificate."""
        bound = f"outputs differ by at most {self.error:.2g} for inputs in [-1, 1]" if self.error else ""
        depends = "its error depends on the inputs" if ROUNDED_OPERANDS in self.detail else ""
        return ", besides: ".join(filter(None, (bound, depends)))

    def _repr_html_(self) -> str:
        return kind_html(self.kind) + escape(str(self).removeprefix(self.kind))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values; *error* only of a ``rounded`` certificate."""
        fields = {**asdict(self), "programs": list(self.programs)}
        return fields if self.error else {name: value for name, value in fields.items() if name != "error"}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Certificate:
        """Read a certificate that ``to_json`` wrote; raises ValueError for other data."""
        fields: dict[str, type | tuple[type, ...]] = {
            "kind": str, "method": str, "at": str, "elements": int, "counterexample": (str, type(None)), "detail": str,
        }  # fmt: skip
        for name, expected in fields.items():
            if not isinstance(data.get(name), expected):
                raise ValueError(f"certificate: {name} is {data.get(name)!r}, expected {_type_names(expected)}")
        if data["kind"] not in get_args(CertificateKind):
            kinds = ", ".join(map(repr, get_args(CertificateKind)))
            raise ValueError(f"certificate: kind is {data['kind']!r}, expected one of {kinds}")
        error = data.get("error", 0.0)
        if not isinstance(error, int | float) or isinstance(error, bool) or not 0 <= error < inf:
            raise ValueError(f"certificate: error is {error!r}, expected a number from 0")
        programs = data.get("programs", [])
        if not isinstance(programs, list) or not all(isinstance(known, str) for known in programs):
            raise ValueError(f"certificate: programs is {programs!r}, expected a list of strings")
        given = {name: data[name] for name in fields if name in data}  # the counterexample is optional
        return Certificate(**given, programs=tuple(programs), error=float(error))


def of_two_programs(counterexample: str) -> str:
    """Return the *counterexample* of a step in words of a comparison: "in the first" for "before"."""
    told = re.fullmatch(r"(.* times?) before and (.* times?) after", counterexample)
    return f"{told[1]} in the first and {told[2]} in the second" if told else counterexample


def kind_html(kind: str) -> str:
    """Return the *kind* of a certificate or of a ``Verdict`` with its sign and colour."""
    sign, colour = {
        "proved": ("✓", GREEN),
        "rounded": ("≈", GREEN),
        "exact": ("≈", AMBER),
        "unknown": ("?", AMBER),
    }.get(kind, ("✗", RED))
    return f"<b style='{hue_style(colour)}'>{sign} {kind}</b>"


def weakest_kind(kinds: Iterable[CertificateKind]) -> CertificateKind:
    """Return the weakest of *kinds*; ``proved`` if there are none.

    With ``rounded`` and ``exact`` it is ``unknown``: there is no bound, and equality was not sampled.
    """
    every = set(kinds)
    every |= {"unknown"} if {"rounded", "exact"} <= every else set()
    return max(every, key=get_args(CertificateKind).index, default="proved")


def is_at_least(kind: CertificateKind, required: CertificateKind) -> bool:
    """Whether *kind* is *required* or stronger."""
    order = get_args(CertificateKind)
    return order.index(kind) <= order.index(required)


def weakest_certificate(results: Sequence[Certificate]) -> Certificate:
    """Combine the certificates of parts: the whole is as certain as its least certain part."""
    if not results:
        return Certificate("proved", "identical", detail="every equation has the same value")
    kind = weakest_kind(c.kind for c in results)
    if kind not in PROOF_KINDS:
        weak = [c for c in results if c.kind == kind]
        if not weak:
            return Certificate(kind, "evaluation", detail=MIXED_TEXT)
        return replace(weak[0], elements=sum(c.elements for c in weak))
    return results[0] if len(results) == 1 else join_proofs(results, detail=f"{len(results)} equations")


def join_proofs(proofs: Sequence[Certificate], at: str = "", detail: str = "") -> Certificate:
    """Combine *proofs* into one, with the axioms of all of them and the largest error."""
    needed = join_axioms(c.detail for c in proofs)
    text = ", ".join(filter(None, (detail, needed)))
    kind, error = weakest_kind(c.kind for c in proofs), max(c.error for c in proofs)
    return Certificate(kind, "term relation", at, detail=text, error=error)


def _type_names(expected: type | tuple[type, ...]) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
