"""What may be done where the reader stands: rules by name, their legal matches, and why the others are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einnet_explore.explore.refusals import Refusal, Refusals, incomplete, why_refused
from einnet_explore.explore.tables import Matches
from einnet_explore.explore.walk import Walk
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.printable import counted
from einnet_explore.rules import Match, Refused, Rule
from einnet_explore.rules.base import places


class Applying(Walk):
    """A walk whose steps are applications of the *known* rules."""

    def __init__(self, start: Program, known: tuple[Rule[Any], ...]) -> None:
        super().__init__(start)
        self.known = known

    def rule(self, name: str) -> Rule[Any]:
        """The rule called *name*; raises LookupError that lists the known ones."""
        for rule in self.known:
            if rule.name == name:
                return rule
        raise LookupError(f"no rule is called {name!r}: there are {', '.join(r.name for r in self.known)}")

    def rules(self, at: str | Path | None = None) -> Matches:
        """The legal matches at the scope *at*, or at every scope; raises LookupError where *at* is none."""
        program = self.program
        paths = [path for path, _ in places(program)] if at is None else [self.path(at)]
        return Matches(m for path in paths for rule in self.known for m in rule.matches(program, path))

    def refusals(self, at: str | Path) -> Refusals:
        """For every rule without a legal match at *at*: why it is refused."""
        return Refusals(self._refusals(self.path(at)))

    def _refusals(self, at: Path) -> Iterable[Refusal]:
        for rule in self.known:
            if not any(True for _ in rule.matches(self.program, at)):
                yield Refusal(rule.name, at, why_refused(rule, self.program, at))

    def why_refused(self, rule: str, at: str | Path = "0") -> str:
        """Why *rule* has no legal match at *at*, with the numbers that failed; says so where it has one."""
        known, path = self.rule(rule), self.path(at)
        ways = sum(1 for _ in known.matches(self.program, path))
        return f"{rule} applies, in {counted(ways, 'way')}" if ways else why_refused(known, self.program, path)

    def path(self, at: str | Path) -> Path:
        """*at* as a path here; raises ValueError or LookupError where there is no such scope."""
        path = _path(at, self.program) if isinstance(at, str) else at
        self.program.scope_at(path)
        return path

    def apply(self, rule: str | Match[Any], at: str | Path = "0", **params: Any) -> Program:
        """Apply a rule by name with parameters in their JSON form, or a match; raises ``Refused`` and changes nothing.

        Where parameters are left out, the rule must have exactly one legal match at *at* with those that are given.
        """
        with self._lock:
            return self._step(rule if isinstance(rule, Match) else self.match(rule, at, params))

    def match(self, rule: str, at: str | Path, params: Mapping[str, Any]) -> Match[Any]:
        """What ``apply`` would apply, whatever the rule calls its parameters; raises ``Refused``."""
        return self._match(self.rule(rule), self.path(at), params)

    def _match(self, rule: Rule[Any], at: Path, params: Mapping[str, Any]) -> Match[Any]:
        where = f"{rule.name} at {show_path(at)}"
        if params:
            try:
                return rule.match(self.program, at, **params)
            except (KeyError, ValueError) as error:
                if not incomplete(error):
                    raise
        legal = list(rule.matches(self.program, at))
        if not legal:
            raise Refused(f"{where}: {why_refused(rule, self.program, at)}")
        chosen = [m for m in legal if params.items() <= rule.encode(m.params).items()]
        if len(chosen) != 1:
            some = "; ".join(str(rule.encode(m.params)) for m in (chosen or legal)[:4])
            with_these = f" with {dict(params)}" if params else ""
            raise Refused(f"{where} has {len(chosen)} legal matches{with_these}, give parameters: {some}")
        return chosen[0]


def _path(at: str, program: Program) -> Path:
    """Numbers are a path whatever equations are called, as scripts and records write it; else the longest name counts.

    Models have equations called ``"0"``, and ``"a.1"`` beside ``"a"``.
    """
    try:
        return read_path(at)
    except ValueError:
        named = {e.name: n for n, e in enumerate(program.equations) if f"{at}.".startswith(f"{e.name}.")}
        if not named:
            known = ", ".join(e.name for e in program.equations[:4]) + (", …" if len(program.equations) > 4 else "")
            first = f"or the name of an equation first: {known}"
            raise ValueError(f"path {at!r}: expected numbers separated by dots, such as 0.1, {first}") from None
        name = max(named, key=len)
        return (named[name], *read_path(at[len(name) + 1 :]))
