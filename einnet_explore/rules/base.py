"""Rules, matches, steps and derivations.

A rule is a law with parameters.  It rewrites the scope at a path of a program and returns a program, because an
instantiation moves a scope into a new equation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar

from einnet_explore.analysis.equations import whole_equation
from einnet_explore.analysis.indices import replace_part
from einnet_explore.ir import (
    Access,
    Apply,
    Equation,
    Path,
    Program,
    Scalar,
    Scope,
    accesses,
    read_path,
    scopes,
    show_path,
    walk_scalar,
)
from einnet_explore.rules.parameters import parameters_decoder, parameters_to_json
from einnet_explore.support.errors import Refused
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


def derived_decode(program: Program, at: Path, params: Mapping[str, object]) -> NoReturn:
    """Stand for the inverse of ``parameters_to_json``, which a rule makes of the annotation of its parameters."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Rule(Generic[P_co]):
    """An equation that rewrites its left side to its right side; each is a value of its own, as its functions are.

    ``rewrite`` is the law and its only guard: it raises ``Refused`` with the numbers that violate the guard.
    ``propose`` yields parameters worth trying, inferred from extents and coefficients; ``rewrite`` accepts all of them.
    ``encode`` and ``decode`` convert parameters to and from JSON, which users write too; without them, the annotation
    of the parameters of ``rewrite`` defines the JSON form (``rules/parameters.py``).  A *local* rule depends only on
    the scope at its path, and on whether that scope is a whole equation; it changes nothing else.  ``explain`` returns
    the reason why nothing is proposed, or an empty text.

    ``Rule[object]`` is a rule of any parameter type.  Its ``rewrite`` accepts only what it proposed or decoded.
    """

    name: str
    law: str
    propose: Callable[[Program, Path], Iterable[P_co]]
    rewrite: Callable[[Program, Path, P_co], Program]
    encode: Callable[[P_co], dict[str, object]] = parameters_to_json
    decode: Callable[[Program, Path, Mapping[str, object]], P_co] = derived_decode
    local: bool = False
    explain: Callable[[Program, Path], str] | None = None

    def __post_init__(self) -> None:
        if self.decode is derived_decode:
            read = parameters_decoder(self.name, self.rewrite, 2)
            object.__setattr__(self, "decode", lambda program, at, params: read(program.scope_at(at), params))

    def matches(self, program: Program, at: Path) -> Iterable[Match[P_co]]:
        """Yield the legal matches at one path."""
        for params in self.propose(program, at):
            yield Match(self, at, params)

    def match(self, program: Program, at: Path, /, **params: object) -> Match[P_co]:
        """Return the match with parameters in the JSON form that users write."""
        return Match(self, at, self.decode(program, at, params))

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"


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
        """Apply the rule; raises Refused where a side condition fails."""
        return Step(program, self, self.rule.rewrite(program, self.at, self.params))

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
    return Match(known[name], at, known[name].decode(program, at, params))


@dataclass(frozen=True, slots=True)
class Step:
    """One applied rewrite."""

    before: Program
    match: Match[object]
    after: Program

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

    Without *explain*, *propose* may yield parameters that *rewrite* refuses: they are not proposed, and their refusals
    explain why the rule does not apply.
    """
    read = decode or parameters_decoder(name, rewrite, 1)

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
        lambda program, at, params: program.replace_at(at, rewrite(program.scope_at(at), params)),
        encode,
        lambda program, at, params: read(program.scope_at(at), params),
        local=True,
        explain=reasons,
    )


def place_rule(
    name: str,
    law: str,
    rewrite: Callable[[Program, Path], Program],
    applies: str | Callable[[Path], str],
    is_proposed: Callable[[Path], bool] = lambda _: True,
) -> Rule[None]:
    """Return a rule without parameters, proposed at paths that *is_proposed* admits and *rewrite* does not refuse.

    *applies* is the explanation where *rewrite* refuses nothing.
    """

    def law_at(program: Program, at: Path, _: None) -> Program:
        return rewrite(program, at)

    law_at.__doc__ = rewrite.__doc__

    def propose(program: Program, at: Path) -> Iterable[None]:
        if is_proposed(at) and accepted(rewrite, program, at):
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

    return scope_rule(name, law, propose, rewrite)
