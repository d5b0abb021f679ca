"""Comparison of two programs: equality, distance from operators, cost.

Includes the iterator mapping table of a scope against an operator (EinNet Table 2, §6.1), with marked mismatches, and
the smallest scopes that a step changed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from html import escape

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import Access, Path, Program, Scope, Tensor, accesses, map_accesses, show_path
from einnet_explore.operators.form import ExpressionDistance, expression_distance
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.matching import match_operator
from einnet_explore.operators.operator import Operator
from einnet_explore.strategies.instantiation import nearest_distance
from einnet_explore.strategies.rounding_levels import LEVEL_WORDS
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import format_seconds
from einnet_explore.syntax import text
from einnet_explore.syntax.computation_graph import computation_graph
from einnet_explore.syntax.tokens import changed_tokens
from einnet_explore.viz.graph_figures import DIFFERENT_COLOUR, align_graphs
from einnet_explore.viz.tables import DisplayedAsTable, TextTable


@dataclass(frozen=True, slots=True, repr=False)
class MappingTable(DisplayedAsTable):
    """The iterator mapping table of the scope at *at* against *operator*.

    *distance* is None if they are not comparable; *iterators* is the map of the first match; *why* refuses one.
    """

    at: Path
    operator: Operator
    distance: ExpressionDistance | None
    iterators: tuple[tuple[str, tuple[str, ...]], ...]
    why: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """The columns of a group's letters: the operator's operands, then its result."""
        pattern = self.operator.pattern
        return (*(operand.name for operand in pattern.operands), pattern.output)

    def table(self) -> TextTable:
        """Return one row for each group of iterators."""
        rows = tuple(
            (
                g.group,
                ", ".join(g.expected) or "–",
                ", ".join(f"{x.name}:{x.extent}" for x in g.found) or "–",
                f"✗ {g.mismatch}" if g.mismatch else "✓",
            )
            for g in (self.distance.groups if self.distance else ())
        )
        far = "cannot be compared" if self.distance is None else f"distance {self.distance.total}"
        says = f"scope {show_path(self.at)} against {self.operator.name}: {far}"
        head = (f"in {', '.join(self.tensors)}", f"{self.operator.name} has", "the scope has", "mismatch")
        return TextTable(head, rows, f"{says}; {self.why}" if self.why else says)


def mapping_table(program: Program, at: Path, operator: Operator) -> MappingTable:
    """Compare the scope at *at* of *program* with *operator*; raises LookupError if there is no such scope."""
    scope = program.scope_at(at)
    try:
        far = expression_distance(scope, operator)
    except Refused as reason:
        return MappingTable(at, operator, None, (), str(reason))
    try:
        way = match_operator(scope, operator)[0]
    except Refused as reason:
        return MappingTable(at, operator, far, (), str(reason))
    return MappingTable(at, operator, far, tuple((name, tuple(x.name for x in xs)) for name, xs in way.iterators), "")


def nearest_operator(program: Program, at: Path, operators: tuple[Operator, ...]) -> Operator:
    """Return the operator that is nearest to the scope at *at*; the first one if none is comparable."""
    scope = program.scope_at(at)

    def far(n: int) -> tuple[float, int]:
        try:
            return expression_distance(scope, operators[n]).total, n
        except Refused:
            return float("inf"), n

    return operators[min(range(len(operators)), key=far)]


_BLANK = Tensor("", ())


def changed_paths(before: Program, after: Program) -> tuple[Path, ...]:
    """Return the paths in *after* of the smallest scopes that *before* does not have in the same place."""
    known = {e.name: e for e in before.equations}
    paths: list[Path] = []
    for n, equation in enumerate(after.equations):
        old = known.get(equation.name)
        if old is None or old.via != equation.via:
            paths.append((n,))
        elif old.scope != equation.scope:
            paths += [(n, *path) for path in _paths_of_changes(old.scope, equation.scope)]
    return tuple(paths)


def _paths_of_changes(old: Scope, new: Scope) -> Iterable[Path]:
    if _without_sources(old) != _without_sources(new):
        yield ()
        return
    for n, (a, b) in enumerate(zip(accesses(old.body), accesses(new.body), strict=True)):
        match a.source, b.source:
            case Scope() as one, Scope() as other if one != other:
                for path in _paths_of_changes(one, other):
                    yield (n, *path)
            case one, other if one != other:
                yield ()
                return


def _without_sources(scope: Scope) -> Scope:
    """Replace the sources of all reads of *scope* by a blank tensor."""
    return replace(scope, body=map_accesses(scope.body, lambda a: Access(_BLANK, a.index)))


def compared_graphs(programs: Sequence[Program], names: Sequence[str]) -> tuple[str, ...]:
    """Return the computation graphs of *programs* as SVG; nodes of one name have one position in all of them.

    Equations that the first program does not have are red; in the first, those that the second does not have.
    """
    graphs = []
    for n, program in enumerate(programs):
        other = programs[0 if n else min(1, len(programs) - 1)]
        differ = {e.name for e in set(program.equations) - set(other.equations)}
        graph = computation_graph(program)
        nodes = (replace(node, colour=DIFFERENT_COLOUR if node.name in differ else "") for node in graph.nodes)
        graphs.append(replace(graph, nodes=tuple(nodes)))
    return tuple(picture.svg() for picture in align_graphs(graphs, names))


def texts_side_by_side(first: str, second: str) -> str:
    """Return two texts as HTML; words that the other does not have in this order are marked."""
    return _HALVES.format("".join(map(_marked, _differing_texts(first, second))))


def programs_side_by_side(programs: tuple[Program, Program], names: tuple[str, str]) -> str:
    """Return the texts and the computation graphs of two programs as HTML, with their differences marked."""
    first, second = map(text, programs)
    figures = "".join(f"<figure>{svg}</figure>" for svg in compared_graphs(programs, names))
    return texts_side_by_side(first, second) + _HALVES.format(figures)


_HALVES = "<div style='display:flex;flex-wrap:wrap;gap:1em'>{}</div>"


@dataclass(frozen=True, repr=False)
class Comparison(DisplayedAsTable):
    """Programs *before* and *after*, which may come from different branches; *names* describe them.

    *steps* lead from the first to the second: the steps of the first are taken back to where the branches part.
    *levels* are the numerics of their derivations, as ``einnet-explore optimize --numerics`` names them.
    """

    before: Program
    after: Program
    names: tuple[str, str] = ("before", "after")
    operators: tuple[Operator, ...] = OPERATORS
    steps: tuple[str, ...] = ()
    levels: tuple[str, str] = ("", "")

    @cached_property
    def same(self) -> bool:
        """Whether their canonical keys are equal: the same program but for names and order."""
        return program_key(self.before) == program_key(self.after)

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate of the comparison."""
        return certify(self.before, self.after)

    @property
    def distances(self) -> tuple[int | None, int | None]:
        """The expression distance of each to the nearest operator."""
        return nearest_distance(self.before, self.operators), nearest_distance(self.after, self.operators)

    @property
    def seconds(self) -> tuple[float, float]:
        """The estimated costs."""
        return program_seconds(self.before)[0], program_seconds(self.after)[0]

    @property
    def programs(self) -> tuple[Program, Program]:
        """Both programs."""
        return self.before, self.after

    @cached_property
    def changed_tokens(self) -> tuple[list[int], list[int]]:
        """The tokens of each that the other does not have, as ``syntax.tokens.changed_tokens`` numbers them."""
        return changed_tokens(self.before, self.after)

    @property
    def changed(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The paths in each of the smallest scopes that the other does not have in the same place."""
        return changed_paths(self.after, self.before), changed_paths(self.before, self.after)

    def graphs(self) -> tuple[str, ...]:
        """Return both computation graphs as SVG, as ``compared_graphs`` does."""
        return compared_graphs(self.programs, self.names)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        shown = self.table()._repr_mimebundle_()
        images = "".join(
            f"<img alt='graph of {escape(n)}' src='{_data(g)}'>" for n, g in zip(self.names, self.graphs(), strict=True)
        )
        steps = "".join(f"<li>{escape(step)}</li>" for step in self.steps)
        listed = f"<p>from {escape(self.names[0])} to {escape(self.names[1])}:</p><ol>{steps}</ol>" if steps else ""
        texts = texts_side_by_side(text(self.before), text(self.after))
        return {**shown, "text/html": shown["text/html"] + texts + _HALVES.format(images) + listed}

    def table(self) -> TextTable:
        """Return one row for each program."""
        words = (LEVEL_WORDS.get(level, level) for level in self.levels)
        rows = tuple(
            (name, "?" if d is None else str(d), format_seconds(s), level, str(len(p.equations)), text(p).rstrip("\n"))
            for name, d, s, level, p in zip(self.names, self.distances, self.seconds, words, self.programs, strict=True)
        )
        verdict = "the same program" if self.same else "different programs"
        caption = f"{verdict}; {self.certificate.kind}"
        return TextTable(("", "distance", "estimated", "numerics", "equations", "program"), rows, caption)


def _differing_texts(one: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return the words of two texts, each with whether the other has it in this order, too."""
    words = [re.findall(r"\w+|\s+|[^\w\s]", shown) for shown in (one, other)]
    sides = [[True] * len(each) for each in words]
    for a, b, size in SequenceMatcher(None, words[0], words[1], autojunk=False).get_matching_blocks():
        sides[0][a : a + size] = sides[1][b : b + size] = [False] * size
    first, second = (list(zip(*each, strict=True)) for each in zip(words, sides, strict=True))
    return first, second


def _marked(words: Iterable[tuple[str, bool]]) -> str:
    shown = "".join(f"<mark>{escape(w)}</mark>" if new and w.strip() else escape(w) for w, new in words)
    return f"<pre style='flex:1 1 20em;white-space:pre-wrap'>{shown}</pre>"


def _data(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
