"""Rules, matches, steps and derivations.

A rule is a law with parameters.  It rewrites the scope at a path of a program and returns a program, because an
instantiation moves a scope into a new equation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import Generic, Literal, ParamSpec, TypedDict, TypeVar

from einnet_explore.analysis.equations import require_ranges, whole_equation
from einnet_explore.analysis.indices import replace_part
from einnet_explore.analysis.well_formedness import require_type, require_well_formed
from einnet_explore.ir import (
    FLOAT32,
    Access,
    Apply,
    Equation,
    Path,
    Program,
    Scalar,
    Scope,
    accesses,
    element_type,
    read_path,
    scopes,
    show_path,
    walk_scalar,
)
from einnet_explore.rules.parameters import parameters_decoder, parameters_to_json
from einnet_explore.support.errors import Refused, RuleError
from einnet_explore.support.json_values import as_object
from einnet_explore.support.wording import count_noun

A = ParamSpec("A")
P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

BAD_STEP_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""Exceptions of decoding or applying a step from a file: its parameters are untrusted JSON."""


@contextmanager
def refusing() -> Generator[None, None, None]:
    """Raise a ValueError of a lower layer as ``Refused`` with the same text; a KeyError is a missing parameter."""
    try:
        yield
    except Refused:
        raise
    except ValueError as why:
        raise Refused(str(why)) from why
    except KeyError as why:
        raise Refused(f"the parameter {why} is missing") from why


def refusals_of(law: Callable[A, object], *args: A.args, **named: A.kwargs) -> tuple[str, ...]:
    """Return the text with which *law* refuses these arguments, as a tuple of one; ``()`` if it applies."""
    try:
        law(*args, **named)
    except Refused as reason:
        return (str(reason),)
    return ()


def accepted(law: Callable[A, object], *args: A.args, **named: A.kwargs) -> bool:
    """Whether *law* applies to these arguments."""
    return not refusals_of(law, *args, **named)


def explain_equation(explain: Callable[[Program, Equation, Path], str]) -> Callable[[Program, Path], str]:
    """Return the ``explain`` of a rule between equations: *explain*, or the refusal of a path inside an equation."""

    def reason(program: Program, at: Path) -> str:
        try:
            return explain(program, whole_equation(program, at), at)
        except ValueError as refusal:
            return str(refusal)

    return reason


def _at_path(read: Callable[[Scope, Mapping[str, object]], P]) -> Callable[[Program, Path, Mapping[str, object]], P]:
    """Return *read* as a function of a program and the path of the scope."""
    return lambda program, at, params: read(program.scope_at(at), params)


@dataclass(frozen=True, slots=True, eq=False)
class Rule(Generic[P_co]):
    """An equation that rewrites its left side to its right side; each is a value of its own, as its functions are.

    ``rewrite`` is the law and its only guard: it raises ``Refused`` with the numbers that violate the guard.
    ``propose`` yields parameters worth trying, inferred from extents and coefficients; ``rewrite`` accepts all of them.
    ``encode`` and ``decode`` convert parameters to and from JSON, which users write too; without them, the annotation
    of the parameters of ``rewrite`` defines the JSON form (see above).  A *local* rule depends only on
    the scope at its path, and on whether that scope is a whole equation; it changes nothing else.  ``explain`` returns
    the reason why nothing is proposed, or an empty text.

    ``Rule[object]`` is a rule of any parameter type.  Its ``rewrite`` accepts only what it proposed or decoded.

    The results of a rule that is not the library's are checked: ``matches`` and ``rewrite`` raise ``RuleError`` with
    its name and the path if one of its functions fails, or the new program is ill-formed.
    """

    name: str
    law: str
    propose: Callable[[Program, Path], Iterable[P_co]]
    rewrite: Callable[[Program, Path, P_co], Program]
    encode: Callable[[P_co], dict[str, object]] = parameters_to_json
    decode: Callable[[Program, Path, Mapping[str, object]], P_co] | None = None
    local: bool = False
    explain: Callable[[Program, Path], str] | None = None

    _read: Callable[[Program, Path, Mapping[str, object]], P_co] = field(init=False)
    """The inverse of ``encode``."""

    def __post_init__(self) -> None:
        _require_arguments(f"{self.name}: rewrite", self.rewrite, "program", "path", "parameters")
        object.__setattr__(self, "_read", self.decode or _at_path(parameters_decoder(self.name, self.rewrite, 2)))
        if not self.is_library:
            for name, check in (("propose", _checked_proposals), ("rewrite", _checked_rewrite)):
                law = getattr(self, name)
                object.__setattr__(self, name, check(self.name, getattr(law, "unchecked", law)))

    @property
    def is_library(self) -> bool:
        """Whether its law is defined in this package, whose tests prove it; the results of others are checked."""
        return _module(self.rewrite).startswith(_PACKAGE)

    def matches(self, program: Program, at: Path) -> Iterable[Match[P_co]]:
        """Yield the legal matches in *program* at *at*: those that keep outputs' types and let no integer overflow."""
        for params in self.propose(program, at):
            match = Match(self, at, params)
            if keeps_types(match, program):
                yield match

    def match(self, program: Program, at: Path, /, **params: object) -> Match[P_co]:
        """Return the match in *program* at *at* with *params*, in the JSON form that users write."""
        return Match(self, at, self._read(program, at, params))

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"


_PACKAGE = __name__.partition(".")[0] + "."


def _module(law: Callable[..., object]) -> str:
    return str(getattr(law, "__module__", ""))


def _require_arguments(what: str, law: Callable[..., object], *names: str) -> None:
    """Raise TypeError if *law* cannot be called with as many arguments as *names*."""
    if not callable(law):
        raise TypeError(f"{what} is {law!r}, expected a function of ({', '.join(names)})")
    try:
        found = signature(law)
    except ValueError:  # a function of C has none
        return
    try:
        found.bind(*names)
    except TypeError:
        raise TypeError(f"{what} takes {found}, expected ({', '.join(names)})") from None


@contextmanager
def _naming_rule(name: str, at: Path) -> Generator[None, None, None]:
    """Raise every exception but ``Refused`` as a ``RuleError`` of the rule *name* at the path *at*."""
    try:
        yield
    except (Refused, RuleError):
        raise
    except Exception as error:
        kind = "" if type(error) in (ValueError, TypeError) else f"{type(error).__name__}: "
        raise RuleError(f"rule {name} at {show_path(at)}: {kind}{error}") from error


def _checked_proposals(
    name: str, propose: Callable[[Program, Path], Iterable[P]]
) -> Callable[[Program, Path], Iterable[P]]:
    """Return *propose* of the rule *name*, whose exceptions name rule and path."""

    @wraps(propose)
    def proposals(program: Program, at: Path) -> Iterable[P]:
        with _naming_rule(name, at):
            yield from propose(program, at)

    proposals.unchecked = propose  # type: ignore[attr-defined]
    return proposals


def _checked_rewrite(
    name: str, rewrite: Callable[[Program, Path, P], Program]
) -> Callable[[Program, Path, P], Program]:
    """Return *rewrite* of the rule *name*: its exceptions name rule and path, and its results are well-formed."""

    @wraps(rewrite)
    def law(program: Program, at: Path, params: P) -> Program:
        with _naming_rule(name, at):
            after = rewrite(program, at, params)
            require_well_formed(program, after)
        return after

    law.unchecked = rewrite  # type: ignore[attr-defined]
    return law


class MatchJson(TypedDict):
    """The JSON form of a match."""

    rule: str
    at: str
    params: dict[str, object]


@dataclass(frozen=True, slots=True)
class Match(Generic[P_co]):
    """A rule, a path and parameters: a rewrite that is not applied yet."""

    rule: Rule[P_co]
    at: Path
    params: P_co

    def apply(self, program: Program) -> Step:
        """Apply the rule to *program*.

        Raises Refused where a side condition fails, or a result has another type or overflows.
        """
        after = self.rule.rewrite(program, self.at, self.params)
        require_types(program, after)
        return Step(program, self, after)

    def mentions(self, names: Iterable[str]) -> bool:
        """Whether the parameters, except an operator's attributes, have one of *names*, of iterators or tensors."""
        params = {k: v for k, v in self.forwards.to_json()["params"].items() if k not in ("operator", "attributes")}
        return not set(names).isdisjoint(re.findall(r"\w+", json.dumps(params, ensure_ascii=False)))

    @property
    def forwards(self) -> Match[object]:
        """The match itself, or that whose step it takes backwards."""
        match self.params:
            case object(of=Match() as of):
                return of
        return self

    @property
    def title(self) -> str:
        """The name of the rule, or of the rule whose step is taken backwards."""
        taken = self.forwards
        return self.rule.name if taken is self else f"{taken.rule.name} backwards"

    def to_json(self) -> MatchJson:
        """``{"rule", "at", "params"}`` as in records and in the JSON of ``derive``."""
        return {"rule": self.rule.name, "at": show_path(self.at), "params": self.rule.encode(self.params)}

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.rule.encode(self.params).items())
        return f"<{self.rule.name} at {show_path(self.at)}{': ' if params else ''}{params}>"


def match_from_json(known: Mapping[str, Rule[object]], program: Program, step: Mapping[str, object]) -> Match[object]:
    """Return the match of ``Match.to_json``; raises one of ``BAD_STEP_ERRORS`` if *program* or *known* has none."""
    name, at, params = str(step["rule"]), read_path(str(step["at"])), as_object(step["params"])
    if name not in known:
        raise LookupError(f"found the rule {name!r}, expected one of {', '.join(known)}")
    program.scope_at(at)
    return known[name].match(program, at, **params)


@dataclass(frozen=True, slots=True)
class Step:
    """One applied rewrite."""

    before: Program
    match: Match[object]
    after: Program

    @property
    def new_equations(self) -> tuple[Equation, ...]:
        """The equations that the step made or changed; all of them if it only removed some or changed their order."""
        known = set(self.before.equations)
        return tuple(e for e in self.after.equations if e not in known) or self.after.equations

    def __repr__(self) -> str:
        return f"<Step {self.match!r}>"


@dataclass(frozen=True, slots=True)
class Derivation:
    """Programs E0 → E1 → … → En.  A value: ``then`` returns a longer one, so undo is free."""

    start: Program
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> Program:
        """The last program."""
        return self.steps[-1].after if self.steps else self.start

    def then(self, match: Match[object]) -> Derivation:
        """This derivation and one more step."""
        return Derivation(self.start, (*self.steps, match.apply(self.end)))

    def __repr__(self) -> str:
        return (
            f"<Derivation of {count_noun(len(self.steps), 'step')}: {', '.join(s.match.rule.name for s in self.steps)}>"
        )


def keeps_types(match: Match[object], program: Program) -> bool:
    """Whether a proposed *match* keeps the types of the outputs of *program*, and lets no integer overflow."""
    return _is_float32(program) or accepted(match.apply, program)


def _is_float32(program: Program) -> bool:
    """Whether no tensor of *program* has another type than ``float32``."""
    return all(t.dtype == FLOAT32 for t in program.inputs) and all(
        element_type(e.scope) == FLOAT32 for e in program.equations
    )


def require_types(before: Program, after: Program) -> None:
    """Raise Refused if an output of *after* has another type than in *before*, or an integer result may overflow.

    Weights that were computed beforehand may have smaller ranges than their types, so that *before* may overflow, too.
    """
    if _is_float32(before):
        return
    types = {e.name: element_type(e.scope) for e in before.equations}
    for equation in after.equations:
        found = element_type(equation.scope)
        if equation.name in before.outputs and found != types.get(equation.name, found):
            raise Refused(f"output {equation.name} would be {found}, expected {types[equation.name]}")
    try:
        require_ranges(after)
    except Refused:
        if accepted(require_ranges, before):
            raise


def access_of(scope: Scope, number: int) -> Access:
    """Access *number* of the body of *scope*, from 0; raises Refused if there are fewer."""
    found = tuple(accesses(scope.body))
    if not 0 <= number < len(found):
        raise Refused(f"access {number}: the body has {len(found)} accesses")
    return found[number]


def places(program: Program) -> Iterable[tuple[Path, Scope]]:
    """Yield the scopes of equations that are not instantiated yet, with their paths, outermost first."""
    for n, equation in enumerate(program.equations):
        if equation.via is None:
            for path, scope in scopes(equation.scope):
                yield (n, *path), scope


def scope_rule(
    name: str,
    law: str,
    propose: Callable[[Scope], Iterable[P]],
    rewrite: Callable[[Scope, P], Scope],
    encode: Callable[[P], dict[str, object]] = parameters_to_json,
    decode: Callable[[Scope, Mapping[str, object]], P] | None = None,
    explain: Callable[[Scope], str] | None = None,
) -> Rule[P]:
    """Return a rule that replaces one scope and reads nothing else (the intra-expression rules of Table 1).

    *name* and *law*, in LaTeX, are those of the rule; *encode* and *decode* are as in ``Rule``.  Without *explain*,
    *propose* may yield parameters that *rewrite* refuses: they are not proposed, and their refusals explain why the
    rule does not apply.  Raises TypeError if *propose* or *rewrite* takes other arguments.
    """
    _require_arguments(f"{name}: propose", propose, "scope")
    _require_arguments(f"{name}: rewrite", rewrite, "scope", "parameters")

    def law_at(program: Program, at: Path, params: P) -> Program:
        return program.replace_at(at, require_type(rewrite(program.scope_at(at), params), Scope))

    law_at.__module__ = _module(rewrite)  # the rule is that of the module of its law

    def proposed(program: Program, at: Path) -> Iterable[P]:
        scope = program.scope_at(at)
        return propose(scope) if explain else (p for p in propose(scope) if accepted(rewrite, scope, p))

    def reasons(program: Program, at: Path) -> str:
        scope = program.scope_at(at)
        if explain:
            return explain(scope)
        return "; ".join(dict.fromkeys(why for p in propose(scope) for why in refusals_of(rewrite, scope, p)))

    return Rule(
        name,
        law,
        proposed,
        law_at,
        encode,
        _at_path(decode or parameters_decoder(name, rewrite, 1)),
        local=True,
        explain=reasons,
    )


def place_rule(
    name: str,
    law: str,
    rewrite: Callable[[Program, Path], Program],
    applies: str | Callable[[Path], str],
    is_proposed: Callable[[Program, Path], bool] = lambda *_: True,
) -> Rule[None]:
    """Return a rule without parameters, proposed at paths that *is_proposed* admits and *rewrite* does not refuse.

    *applies* is the explanation where *rewrite* refuses nothing.
    """

    def law_at(program: Program, at: Path, _: None) -> Program:
        return rewrite(program, at)

    law_at.__doc__, law_at.__module__ = rewrite.__doc__, _module(rewrite)

    def propose(program: Program, at: Path) -> Iterable[None]:
        if is_proposed(program, at) and accepted(rewrite, program, at):
            yield None

    def explain(program: Program, at: Path) -> str:
        reasons = refusals_of(rewrite, program, at)
        return reasons[0] if reasons else applies if isinstance(applies, str) else applies(at)

    return Rule(name, law, propose, law_at, explain=explain)


@dataclass(frozen=True, slots=True)
class FunctionLaw:
    """The number of the function (apart) or of the product of functions (together), counted in order of writing."""

    part: int
    direction: Literal["apart", "together"]


def function_rule(
    name: str, law: str, apart: Callable[[Apply], Scalar], together: Callable[[Apply], Scalar]
) -> Rule[FunctionLaw]:
    """Return the rule that rewrites one function in a body by *apart* or *together*, which may refuse it."""

    def propose(scope: Scope) -> Iterable[FunctionLaw]:
        for n, _ in enumerate(walk_scalar(scope.body)):
            yield from (FunctionLaw(n, "apart"), FunctionLaw(n, "together"))

    def rewrite(scope: Scope, params: FunctionLaw) -> Scope:
        parts = tuple(walk_scalar(scope.body))
        if not 0 <= params.part < len(parts):
            raise Refused(f"part {params.part}: the body has {len(parts)}")
        part = parts[params.part]
        if not isinstance(part, Apply):
            raise Refused(f"part {params.part} is {part!r}, expected a function")
        change = apart if params.direction == "apart" else together
        return replace(scope, body=replace_part(scope.body, params.part, change(part)))

    rewrite.__module__ = _module(apart)
    return scope_rule(name, law, propose, rewrite)
