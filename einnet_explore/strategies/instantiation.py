r"""Operator matching as a rule (Table 1, §5.1, §6.1): a scope becomes a library call between layout eOperators.

.. math::  L_{\vec x} \sum_{\vec y} A[\tau_A]\,B[\tau_B] \;\mapsto\; A' = A[\Phi_A^{-1}],\; B' = B[\Phi_B^{-1}],\;
           T = op(A', B'),\; L_{\vec x} T[\Phi(\vec x)]

Operands whose layout strides express are views, or the source itself; the others are gathered by eOperators.

``guided_matching`` derives towards an operator step by step, by the expression distance (Table 2).  If several
iterators of a scope correspond to one iterator of the operator, a variable substitution joins two of them:

.. math::  z = (a - lo_a)\,|b| + (b - lo_b)

Every substitution lowers the expression distance; if none is left, the scope is matched.  A search matches at once
instead (``strategies.engine``): matching joins the iterators of a group by strides, with the same operator and
attributes as result, and without intermediate programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise

from einnet_explore.analysis.bilinear import table_scope
from einnet_explore.analysis.flattening import view_strides
from einnet_explore.analysis.indices import fresh_name
from einnet_explore.ir import (
    VIEW,
    Access,
    Attribute,
    Const,
    EOperatorKind,
    Equation,
    Instance,
    Iterator,
    Path,
    Program,
    Scope,
    Table,
    Tensor,
    mul,
)
from einnet_explore.operators.form import expression_distance, own_iterators, read_form
from einnet_explore.operators.layout import Layout
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.matching import OperatorMatch, fit_operator, match_operator
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import (
    ALL_RULES,
    INVERSE,
    ROUNDING_RULES,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
)
from einnet_explore.rules.base import Rule, places, refusals_of
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.rules.variable_substitution import Substitution, join_iterators
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_integers, as_object, as_texts
from einnet_explore.support.limits import MEMO_ENTRIES
from einnet_explore.support.wording import count_noun

LAW = r"L_{\vec x} \textstyle\sum_{\vec y} f(T[\tau(\vec x, \vec y)]) \mapsto \{L_{\vec x}\, op(T')[\Phi(\vec x)]\}"

LAYOUT = EOperatorKind.LAYOUT.instance

MAX_JOININGS = 64
"""Ways to join iterators that are tried, each until the distance is 0."""


@dataclass(frozen=True, slots=True)
class MatchParams:
    """The operator, the access that each operand is, the iterators that each of its own is, the solved attributes."""

    operator: str
    operands: tuple[int, ...]
    iterators: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[tuple[str, Attribute], ...]


@lru_cache(maxsize=64)
def matching_rule(operators: tuple[Operator, ...], limit: int = 8) -> Rule[MatchParams]:
    """The rule that matches a scope with one of *operators*; it proposes at most *limit* ways for each."""
    named = {name: operator for operator in operators for name in operator.names}
    matched: dict[tuple[Scope, MatchParams], OperatorMatch] = {}

    @lru_cache(MEMO_ENTRIES)
    def ways(scope: Scope) -> tuple[MatchParams, ...]:
        found = dict[MatchParams, OperatorMatch]()
        for operator in operators:
            try:
                found |= {_params(way): way for way in match_operator(scope, operator, limit)}
            except Refused:
                continue
        if len(matched) > MEMO_ENTRIES:
            matched.clear()
        matched.update(((scope, params), way) for params, way in found.items())
        return tuple(found)

    def propose(program: Program, at: Path) -> Iterable[MatchParams]:
        if program.equations[at[0]].via is None:
            yield from ways(program.scope_at(at))

    def rewrite(program: Program, at: Path, params: MatchParams) -> Program:
        r"""Operator matching (Table 1, §5.1): a scope becomes a call of a library operator between layout eOperators.

        .. math::  L_{\vec x} \sum_{\vec y} A[\tau_A]\,B[\tau_B] \;\mapsto\; A' = A[\Phi_A^{-1}],\; B' = B[\Phi_B^{-1}],
                   \; T = op(A', B'),\; L_{\vec x} T[\Phi(\vec x)]

        The iterators of the scope must index the same tensors as those of the operator, by its iterator mapping table;
        several iterators may stand for one.  Strides, dilations and paddings are solved from the coefficients of the
        flattened tensors.  Operands whose layout strides express are views, which cost nothing; the others are gathered
        by eOperators.  The parameters name the operator, or the operator and its attributes.
        """
        _require_open(program, at)
        scope = program.scope_at(at)
        return instantiate_match(program, at, matched.get((scope, params)) or _fit_given(scope, named, params))

    def explain(program: Program, at: Path) -> str:
        if refused := refusals_of(_require_open, program, at):
            return refused[0]
        return _why_unmatched(program.scope_at(at), operators)

    return Rule("operator_matching", LAW, propose, rewrite, _encode, _decode, explain=explain)


def known_rules(operators: tuple[Operator, ...] = OPERATORS) -> dict[str, Rule[object]]:
    """Return the rules that a step may name, by name; one matches scopes with *operators*."""
    return {rule.name: rule for rule in (*ALL_RULES, *ROUNDING_RULES, INVERSE, matching_rule(operators))}


def _require_open(program: Program, at: Path) -> None:
    if (via := program.equations[at[0]].via) is not None:
        raise Refused(f"equation {program.equations[at[0]].name} is run by {via!r} already")


def _fit_given(scope: Scope, operators: Mapping[str, Operator], params: MatchParams) -> OperatorMatch:
    """Return the match that *params* describe; raises Refused if *scope* has other attributes or matches no call."""
    if params.operator not in operators:
        raise Refused(f"unknown operator {params.operator!r}, expected one of {', '.join(operators)}")
    given = dict(params.attributes)
    way = fit_operator(scope, operators[params.operator], params.operands, _assignment(scope, params), given)
    wrong = {k: v for k, v in params.attributes if dict(way.attributes).get(k, v) != v}
    if wrong:
        raise Refused(f"{params.operator} is given {wrong}, the scope has {dict(way.attributes)}")
    return way


def nearest_distance(program: Program, operators: tuple[Operator, ...]) -> int | None:
    """The smallest expression distance from a scope of *program* to an operator; None if none is comparable.

    It is 0 if operators run all equations.
    """
    left = [scope for _, scope in places(program)]
    found = [d for scope in left if (d := scope_distance(scope, operators)) is not None]
    return min(found, default=None if left else 0)


@lru_cache(MEMO_ENTRIES)
def scope_distance(scope: Scope, operators: tuple[Operator, ...]) -> int | None:
    """The smallest expression distance from *scope* itself to an operator; None if none is comparable."""
    return min((d for operator in operators if (d := _distance(scope, operator)) is not None), default=None)


def _why_unmatched(scope: Scope, operators: tuple[Operator, ...]) -> str:
    """Return the refusal of the nearest operator; if none is comparable, that of the first operator."""
    far = [(d, n) for n, operator in enumerate(operators) if (d := _distance(scope, operator)) is not None]
    nearest_one = operators[min(far)[1] if far else 0]
    try:
        match_operator(scope, nearest_one)
    except Refused as reason:
        away = f"the nearest is {nearest_one.name}, {count_noun(min(far)[0], 'iterator')} away: " if far else ""
        return f"{away}{reason}"
    return f"{nearest_one.name} matches"


def instantiate_match(program: Program, at: Path, way: OperatorMatch) -> Program:
    """*program* with the scope at *at* run by *way*: equations for operands, the call, and a read of its result."""
    used = set(program.names())
    before = list[Equation]()
    operands = [_operand(layout, before, used) for layout in way.layouts]
    attributes = dict(way.attributes)
    call = way.operator.instantiate(attributes, operands)
    via = way.operator.instance(attributes)
    old = program.equations[at[0]]
    scope = program.scope_at(at)
    if len(at) == 1 and _is_result(scope, call, way):
        return _with(program, at[0], (*before, Equation(old.name, call, via)))
    result = Equation(_fresh("T", used), call, via)
    before.append(result)
    reader = Scope(
        scope.traversals,
        (),
        mul(Const(way.scale), Access(result.tensor, way.index)),
        padding=scope.padding,
        value=scope.value,
    )
    if len(at) == 1 and way.output_free and way.scale == 1:
        return _with(program, at[0], (*before, Equation(old.name, reader, _view(reader))))
    return program.replace_at(at, reader, tuple(before))


def _operand(layout: Layout, before: list[Equation], used: set[str]) -> Tensor:
    """The tensor that the call reads; what has to be computed for it goes to *before*."""
    access = layout.scope.body
    assert isinstance(access, Access)
    source = access.source
    if isinstance(source, Tensor) and layout.same:
        return source
    scope = layout.scope
    if isinstance(source, Table):
        source = table_scope(source)
    if isinstance(source, Scope):
        inner = Equation(_fresh("E", used), source)
        before.append(inner)
        source = inner.tensor
        scope = replace(scope, body=Access(source, access.index))
        if not source.origin and layout.scope.shape == source.shape and _straight(scope):
            return source
    made = Equation(_fresh(source.name, used), scope, _view(scope) if layout.free else LAYOUT)
    before.append(made)
    return made.tensor


def _view(scope: Scope) -> Instance:
    found = view_strides(scope)
    if found is None:
        raise Refused(f"{scope!r} is no view")
    offset, strides = found
    return Instance(VIEW, (("offset", offset), ("strides", strides)))


def _straight(scope: Scope) -> bool:
    access = scope.body
    return isinstance(access, Access) and tuple(i.single for i in access.index) == scope.traversals


def _is_result(scope: Scope, call: Scope, way: OperatorMatch) -> bool:
    """Whether the call's result is the scope's, element by element at the same index."""
    reads = tuple(i.single for i in way.index)
    return way.scale == 1 and reads == scope.traversals and scope.box == call.box and not scope.padding


def _with(program: Program, n: int, equations: tuple[Equation, ...]) -> Program:
    return replace(program, equations=(*program.equations[:n], *equations, *program.equations[n + 1 :]))


def _fresh(stem: str, used: set[str]) -> str:
    name = fresh_name(stem, used)
    used.add(name)
    return name


def _distance(scope: Scope, operator: Operator) -> int | None:
    try:
        return expression_distance(scope, operator).total
    except Refused:
        return None


def _params(way: OperatorMatch) -> MatchParams:
    return MatchParams(
        way.operator.name,
        way.operands,
        tuple((name, tuple(x.name for x in xs)) for name, xs in way.iterators),
        way.attributes,
    )


def _assignment(scope: Scope, params: MatchParams) -> dict[str, tuple[Iterator, ...]]:
    own = {x.name: x for x in own_iterators(scope)}
    unknown = [x for _, xs in params.iterators for x in xs if x not in own]
    if unknown:
        raise Refused(f"the scope has no iterator {', '.join(unknown)}, only {', '.join(own)}")
    return {name: tuple(own[x] for x in xs) for name, xs in params.iterators}


def _attribute(value: object) -> Attribute:
    match value:
        case int() | str():
            return value
        case [*items]:
            return as_integers(items)
    raise ValueError(f"attribute {value!r}: expected a number, text or numbers")


def _decode(_: Program, __: Path, params: Mapping[str, object]) -> MatchParams:
    try:
        return MatchParams(
            str(params["operator"]),
            as_integers(params["operands"]),
            tuple((k, as_texts(v)) for k, v in as_object(params["iterators"]).items()),
            tuple((k, _attribute(v)) for k, v in as_object(params.get("attributes", {})).items()),
        )
    except KeyError as missing:
        raise ValueError(f"operator_matching needs {missing}: operator, operands, iterators, attributes") from None


def _encode(params: MatchParams) -> dict[str, object]:
    return {
        "operator": params.operator,
        "operands": list(params.operands),
        "iterators": {name: list(xs) for name, xs in params.iterators},
        "attributes": {k: list(v) if isinstance(v, tuple) else v for k, v in params.attributes},
    }


def guided_matching(program: Program, at: Path, operator: Operator) -> Derivation:
    """Return the steps from the scope at *at* of *program* to a call of *operator*, each one nearer to it.

    Raises Refused if the two are not comparable, or if joining iterators does not lead to a match.
    """
    distance = expression_distance(program.scope_at(at), operator).total
    for joined, inner in islice(_joined(Derivation(program), at, operator), MAX_JOININGS):
        for match in matching_rule((operator,)).matches(joined.end, inner):
            return joined.then(match)
    away = f"the scope is {count_noun(distance, 'iterator')} away from {operator.name}"
    raise Refused(f"{away}, and joining iterators of one group leads to no match")


def _joined(derivation: Derivation, at: Path, operator: Operator) -> Iterable[tuple[Derivation, Path]]:
    """Yield the continuations of *derivation* that leave no surplus iterators at *at*, and the scope's path there."""
    distance = expression_distance(derivation.end.scope_at(at), operator)
    if all(len(row.found) <= len(row.expected) for row in distance.groups):
        yield derivation, at  # an iterator that is still missing has one value
        return
    for params in _joins(derivation.end.scope_at(at), operator):
        joined, inner = _join(derivation, at, params)
        if expression_distance(joined.end.scope_at(inner), operator).total < distance.total:
            yield from _joined(joined, inner, operator)


def _joins(scope: Scope, operator: Operator) -> Iterable[Substitution]:
    """Yield substitutions that join two iterators of a group that has too many, neighbours in an operand.

    Those that share no index with another group (as ``h`` and ``r`` do in the window ``h + r``) come first.
    """
    form, distance = read_form(scope), expression_distance(scope, operator)
    origin = {part: index.iterators[0] for part, index in form.back}
    indices = [index.iterators for read in form.reads for index in read.index]
    pairs = dict[tuple[Iterator, Iterator], None]()
    for row in distance.groups:
        if len(row.found) > len(row.expected) > 0:
            group = form.groups(distance.operands)[row.group]
            alone = [x for x in group if all(set(found) <= set(group) for found in indices if x in found)]
            for parts in (alone, group):
                orders = (sorted(parts, key=rank.__getitem__) for rank in form.ranks if set(parts) <= rank.keys())
                for order in orders:
                    pairs |= dict.fromkeys(pairwise(dict.fromkeys(origin.get(x, x) for x in order)))
    return (join_iterators(scope, pair) for pair in pairs)


def _join(derivation: Derivation, at: Path, params: Substitution) -> tuple[Derivation, Path]:
    """Append *params* at *at*; return also the path of the scope that has the new iterator.

    Traversals are substituted in a nested scope.  Where *at* was nested by the step before, it then only re-indexes,
    and its reader is merged with it.
    """
    joined = derivation.then(Match(VARIABLE_SUBSTITUTION, at, params))
    if joined.end.scope_at(at).summations:
        return joined, at
    if any(step.match.at == at[:-1] for step in derivation.steps):
        return joined.then(Match(TRAVERSAL_MERGING, at[:-1], Merging(0))), at
    return joined, (*at, 0)
