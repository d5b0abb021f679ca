"""Rules, and the values they leave behind: Match, Step, Derivation.

A rule is a law with parameters.  It acts on the scope at a path of a program; what it yields is again a program, since
an instantiation takes a scope out into an equation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from einnet_explore.ir import Access, Path, Program, Scope, accesses, scopes, show_path
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import counted

A = ParamSpec("A")
P = TypeVar("P")


NO_STEP = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading and applying a step from a file raises where it is none: its parameters are whatever somebody wrote."""


@contextmanager
def refusing() -> Generator[None, None, None]:
    """Turn a ValueError of the algebra below, which knows no rules, into a refusal with the same words."""
    try:
        yield
    except Refused:
        raise
    except ValueError as why:
        raise Refused(str(why)) from why
    except KeyError as why:
        raise Refused(f"the parameter {why} is missing") from why


def accepted(law: Callable[A, object], *asked: A.args, **named: A.kwargs) -> bool:
    """Whether *law* does not refuse what it is *asked*."""
    try:
        law(*asked, **named)
    except Refused:
        return False
    return True


def inside(at: Path) -> str | None:
    """Why a rule between expressions does not apply at *at*; None where that is a whole equation."""
    return None if len(at) == 1 else f"path {at} is a scope inside an equation, expected an equation"


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """An equation that may be read left to right.

    ``rewrite`` is the law and its only guard: it refuses with the numbers that failed.  ``propose`` enumerates
    parameters worth trying, inferred from the extents and coefficients at hand; all that it yields is accepted.
    ``encode`` and ``decode`` give parameters their JSON form, in which users write them too.  A *local* rule looks at
    nothing but the scope at its path and whether that is a whole equation's, and changes nothing else.  ``explain``
    says why it proposes nothing, where it proposes nothing.
    """

    name: str
    law: str
    propose: Callable[[Program, Path], Iterable[P]]
    rewrite: Callable[[Program, Path, P], Program]
    encode: Callable[[P], dict[str, Any]]
    decode: Callable[[Program, Path, Mapping[str, Any]], P]
    local: bool = False
    explain: Callable[[Program, Path], str] | None = None

    def matches(self, program: Program, at: Path) -> Iterable[Match[P]]:
        """The legal matches at one path."""
        for params in self.propose(program, at):
            yield Match(self, at, params)

    def match(self, program: Program, at: Path, /, **params: Any) -> Match[P]:
        """The match that a user asks for by writing parameters, whatever they are called, in their JSON form."""
        return Match(self, at, self.decode(program, at, params))

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"


@dataclass(frozen=True, slots=True)
class Match(Generic[P]):
    """A rule, a place and parameters: a rewrite that has not happened yet."""

    rule: Rule[P]
    at: Path
    params: P

    def apply(self, program: Program) -> Step:
        """Do it; raises Refused where a side condition fails."""
        return Step(program, self, self.rule.rewrite(program, self.at, self.params))

    def to_json(self) -> dict[str, Any]:
        """``{"rule", "at", "params"}`` as in records and in the JSON of ``derive``."""
        return {"rule": self.rule.name, "at": show_path(self.at), "params": self.rule.encode(self.params)}

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.rule.encode(self.params).items())
        return f"<{self.rule.name} at {show_path(self.at)}{': ' if params else ''}{params}>"


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite that has happened."""

    before: Program
    match: Match[Any]
    after: Program

    def __repr__(self) -> str:
        return f"<Step {self.match!r}>"


@dataclass(frozen=True, slots=True)
class Derivation:
    """E0 → E1 → … → En.  A value: extending it makes a new one, so undo is free."""

    start: Program
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> Program:
        """The last program."""
        return self.steps[-1].after if self.steps else self.start

    def then(self, match: Match[Any]) -> Derivation:
        """This derivation and one more step."""
        return Derivation(self.start, (*self.steps, match.apply(self.end)))

    def __repr__(self) -> str:
        return f"<Derivation of {counted(len(self.steps), 'step')}: {', '.join(s.match.rule.name for s in self.steps)}>"


def access_of(scope: Scope, number: int) -> Access:
    """The access of that *number* in the body of *scope*, counted from 0; refuses where there are fewer."""
    found = tuple(accesses(scope.body))
    if not 0 <= number < len(found):
        raise Refused(f"access {number}: the body has {len(found)} accesses")
    return found[number]


def places(program: Program) -> Iterable[tuple[Path, Scope]]:
    """Every scope that rules may act on, with its path: those of equations not instantiated yet, outermost first."""
    for n, equation in enumerate(program.equations):
        if equation.via is None:
            for path, scope in scopes(equation.scope):
                yield (n, *path), scope


def scope_rule(
    name: str,
    law: str,
    propose: Callable[[Scope], Iterable[P]],
    rewrite: Callable[[Scope, P], Scope],
    encode: Callable[[P], dict[str, Any]],
    decode: Callable[[Scope, Mapping[str, Any]], P],
    explain: Callable[[Scope], str] | None = None,
) -> Rule[P]:
    """A rule that only looks at one scope and puts another in its place (the intra-expression rules of Table 1)."""

    def guarded(program: Program, at: Path, params: P) -> Program:
        return program.replace_at(at, rewrite(program.scope_at(at), params))

    return Rule(
        name,
        law,
        lambda program, at: propose(program.scope_at(at)),
        guarded,
        encode,
        lambda program, at, params: decode(program.scope_at(at), params),
        local=True,
        explain=None if explain is None else lambda program, at: explain(program.scope_at(at)),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The parameters of a rule that has none: the place says everything.  Their JSON form is ``{}``."""


def place_rule(
    name: str,
    law: str,
    rewrite: Callable[[Program, Path], Program],
    otherwise: Callable[[Path], str],
    tried: Callable[[Path], bool] = lambda _: True,
    local: bool = False,
) -> Rule[Place]:
    """A rule without parameters, proposed where *tried* holds of the path and *rewrite* does not refuse.

    *otherwise* says why nothing is proposed where nothing is refused.
    """

    def law_at(program: Program, at: Path, _: Place) -> Program:
        return rewrite(program, at)

    def propose(program: Program, at: Path) -> Iterable[Place]:
        if tried(at) and accepted(law_at, program, at, Place()):
            yield Place()

    def decode(_: Program, __: Path, params: Mapping[str, Any]) -> Place:
        if params:
            raise Refused(f"{name} takes no parameters, found {', '.join(params)}")
        return Place()

    def explain(program: Program, at: Path) -> str:
        try:
            rewrite(program, at)
        except Refused as why:
            return str(why)
        return otherwise(at)

    return Rule(name, law, propose, law_at, lambda _: {}, decode, local, explain)


def not_run_yet(program: Program, at: Path) -> None:
    """Refuses what stands in an equation that is instantiated already."""
    equation = program.equations[at[0]]
    if equation.via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
