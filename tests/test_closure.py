"""Algorithm 1: what inter-expression rules and the search find together (Fig. 3, Fig. 15, queries, keys and values)."""

from collections.abc import Iterable
from itertools import islice
from math import prod

import pytest

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.checker import check_record
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import BATCH_MERGING, EXPRESSION_SPLITTING, SIBLING_MERGING, Derivation
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import Candidate, replay, steps_to_json
from einnet_explore.strategies.closure import (
    MAX_CHOICES,
    ExpressionSearches,
    Limits,
    _limit_choices,
    candidates,
    compute_bound,
    merge_closure,
    standalone,
    variants,
)
from einnet_explore.syntax import parse
from tests.rules_kit import assert_equal

LIMITS = Limits(seconds=600, max_depth=2)
"""Every search ends by itself long before, so that what is found does not depend on the machine, stalled or not."""


def sizes(program: Program) -> list[tuple[str, list[int]]]:
    """The library calls of *program* by name with their sizes, for products in whichever order of their operands."""
    vias = [e.via for e in program.equations if e.via and e.via.operator not in ("View", "eOperator")]
    flags = ("ta", "tb")
    held = ((v.operator, {k: n for k, n in v.attributes if k not in flags}) for v in vias)
    return sorted((name, sorted(n for n in by.values() if isinstance(n, int) and n > 1)) for name, by in held)


def found(program: Program, wanted: list[tuple[str, list[int]]], limits: Limits = LIMITS) -> Candidate:
    """The first candidate with exactly the calls *wanted*; it is proved, step by step and as a whole."""
    every: list[Candidate] = []
    for candidate in candidates(program, program_seconds, limits):
        every.append(candidate)
        if sizes(candidate.program) == sorted(wanted):
            steps = candidate.derivation.steps
            assert candidate.derivation.start == program
            assert {certify(step.before, step.after).kind for step in steps} == {"proved"}
            assert certify(program, candidate.program).kind == "proved"
            assert_equal(program, candidate.program)
            return candidate
    raise AssertionError(sorted({str(sizes(c.program)) for c in every}))


def merges(candidate: Candidate) -> list[str]:
    names = ("sibling_merging", "batch_merging", "expression_splitting")
    return [s.match.rule.name for s in candidate.derivation.steps if s.match.rule.name in names]


def qkv(m: int, k: int, n: int) -> Program:
    return parse(f"""
        tensor X[{m}, {k}]
        tensor A[{k}, {n}] weight
        tensor B[{k}, {n}] weight
        tensor C[{n}, {k}] weight
        Q[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * A[k, n]
        K[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * B[k, n]
        V[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * C[n, k]
        output Q, K, V
    """)


@pytest.mark.parametrize(("m", "k", "n"), [(40, 24, 16), (36, 30, 10)])
def test_queries_keys_and_values_are_one_product(m: int, k: int, n: int) -> None:
    candidate = found(qkv(m, k, n), [("Matmul", sorted((m, k, 3 * n)))])
    assert merges(candidate) == ["sibling_merging"]


def fig3(h: int, w: int, c: int, f: int, g: int) -> Program:
    return parse(f"""
        tensor A[1, {c}, {h}, {w}] pad [0, 0, 1, 1]
        tensor K[{f}, {c}, 3, 3] weight
        tensor L[{g}, {c}, 1, 1] weight
        Y[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
        Z[n:1, f:{g}, h:{h}, w:{w}] = sum[c:{c}, r:1, s:1] A[n, c, h+r, w+s] * L[f, c, r, s]
        R[n:1, f:{f}, h:{h}, w:{w}] = relu(Y[n, f, h, w])
        output R, Z
    """)


@pytest.mark.parametrize(
    ("h", "w", "c", "f", "g"), [(7, 6, 20, 12, 16), pytest.param(6, 5, 18, 10, 24, marks=pytest.mark.slow)]
)
def test_fig3_convolutions_of_two_sizes_are_one_product(h: int, w: int, c: int, f: int, g: int) -> None:
    """The Conv3x3 becomes a product with nine times its channels, and the Conv1x1's are put beside them."""
    candidate = found(fig3(h, w, c, f, g), [("Matmul", sorted((h * w, c, 9 * f + g)))])
    assert merges(candidate) == ["sibling_merging"]
    names = [s.match.rule.name for s in candidate.derivation.steps]
    assert names.index("operator_matching") < names.index("sibling_merging")


def test_fig3_as_one_convolution() -> None:
    program = fig3(7, 6, 20, 12, 16)
    wide = next(v.end for v in variants(program, program_seconds, LIMITS) if len(v.steps) == 1)
    assert [e.scope.shape for e in wide.equations if len(e.scope.summations) > 1] == [(1, 28, 7, 6)]
    assert certify(program, wide).kind == "proved"


def fig15(h: int, w: int, c: int, f: int, k: int) -> Program:
    p = k // 2
    return parse(f"""
        tensor X[1, {c}, {h}, {w}] pad [0, 0, {p}, {p}]
        tensor A[{f}, {c}, {k}, 1] weight
        tensor B[{f}, {f}, 1, {k}] weight
        tensor C[{f}, {c}, 1, {k}] weight
        tensor D[{f}, {f}, {k}, 1] weight
        P[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:{k}, s:1] X[n, c, h+r-{p}, w+s] * A[f, c, r, s] pad [0, 0, 0, {p}]
        Q[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{f}, r:1, s:{k}] P[n, c, h+r, w+s-{p}] * B[f, c, r, s]
        R[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:1, s:{k}] X[n, c, h+r, w+s-{p}] * C[f, c, r, s] pad [0, 0, {p}, 0]
        S[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{f}, r:{k}, s:1] R[n, c, h+r-{p}, w+s] * D[f, c, r, s]
        Y[n:1, f:{f}, h:{h}, w:{w}] = Q[n, f, h, w] + S[n, f, h, w]
    """)


@pytest.mark.parametrize(
    ("h", "w", "c", "f", "k"), [(8, 7, 20, 9, 3), pytest.param(9, 6, 24, 7, 5, marks=pytest.mark.slow)]
)
def test_fig15_four_convolutions_are_two_products(h: int, w: int, c: int, f: int, k: int) -> None:
    """The first two products share their input, the last two make a batch."""
    wanted = [("Matmul", sorted((2 * k * f, h * w, c))), ("BatchMatmul", sorted((2, k * f, h * w, f)))]
    candidate = found(fig15(h, w, c, f, k), wanted)
    assert sorted(merges(candidate)) == ["batch_merging", "sibling_merging"]


def test_the_program_itself_comes_first_and_nothing_twice() -> None:
    program = qkv(40, 24, 16)
    members = list(variants(program, program_seconds, Limits(seconds=2, max_depth=1)))
    assert members[0] == Derivation(program)
    assert members[1].steps[0].match.params.others == ("K", "V")
    keys = [program_key(m.end) for m in members]
    assert len(set(keys)) == len(keys)
    for member in members:
        assert certify(program, member.end).kind == "proved"


def test_members_come_one_by_one() -> None:
    """Nothing is searched before the closure of the program is used up."""

    def never(_: Program) -> tuple[float, str]:
        raise AssertionError("searched")

    assert len(list(islice(variants(qkv(40, 24, 16), never), 5))) == 5


def test_a_closure_is_bounded() -> None:
    start = Derivation(qkv(40, 24, 16))
    rules = (SIBLING_MERGING, BATCH_MERGING, EXPRESSION_SPLITTING)
    assert [len(list(merge_closure(start, rules, most))) for most in (1, 2, 5)] == [1, 2, 5]
    everything = list(merge_closure(start, (SIBLING_MERGING,), 50))
    assert len(everything) < 12 and any(len(d.steps) == 2 for d in everything)


def test_one_expression_has_no_other_members() -> None:
    program = parse("tensor A[40, 24]\ntensor B[24, 16] weight\nY[m:40, n:16] = sum[k:24] A[m, k] * B[k, n]")
    assert [v.end for v in variants(program, program_seconds, LIMITS)] == [program]
    assert sizes(next(iter(candidates(program, program_seconds, LIMITS))).program) == [("Matmul", [16, 24, 40])]


def test_equal_expressions_are_searched_once() -> None:
    program = qkv(40, 24, 16)
    assert compute_bound(program) == (0, 1, 2)
    assert standalone(program, 0) == standalone(program, 1) != standalone(program, 2)
    pieces = ExpressionSearches(program_seconds, LIMITS)
    pieces.share((0, 1, 2))
    for n in range(3):
        pieces.ways(program, n)
    assert len(pieces.known) == 2


def test_the_cheapest_of_every_expression_is_the_cheapest_of_the_program() -> None:
    program = fig3(7, 6, 20, 12, 16)
    pieces = ExpressionSearches(program_seconds, LIMITS)
    pieces.share(compute_bound(program))
    first, *others = _costs(pieces.combined(Derivation(program)))
    assert others and all(first <= other * (1 + 1e-9) for other in others)


def test_many_expressions_are_put_together_in_bounded_time() -> None:
    """Two ways for each of 40 expressions, such as experts of one value, were 2^40 choices."""
    inputs = "".join(f"tensor W{n}[24, 16] weight\n" for n in range(40))
    equations = "".join(f"Y{n}[i:40, j:16] = sum[k:24] X[i, k] * W{n}[k, j]\n" for n in range(40))
    program = parse(f"tensor X[40, 24]\n{inputs}{equations}")
    pieces = ExpressionSearches(program_seconds, LIMITS)
    pieces.share(compute_bound(program))
    first, *others = islice(pieces.combined(Derivation(program)), 4)
    assert len(sizes(first.end)) == 40 and len(others) == 3
    costs = _costs([first, *others])
    assert all(costs[0] <= cost * (1 + 1e-9) for cost in costs)
    held = [pieces.ways(program, n) for n in compute_bound(program)]
    assert prod(map(len, _limit_choices(held))) <= MAX_CHOICES < prod(map(len, held))


def test_what_needs_no_search_is_put_together_too() -> None:
    derivation = Derivation(parse("tensor A[4]\nY[i:4] = relu(A[i])"))
    (whole,) = ExpressionSearches(program_seconds, LIMITS).combined(derivation)
    assert [e.via and e.via.operator for e in whole.end.equations] == ["eOperator"]


def _costs(derivations: Iterable[Derivation]) -> list[float]:
    return [program_seconds(d.end)[0] for d in derivations]


def test_what_is_found_is_replayed_and_checked() -> None:
    program = qkv(40, 24, 16)
    derivation = found(program, [("Matmul", [24, 40, 48])]).derivation
    assert replay(program, steps_to_json(derivation)) == derivation
    session = Session(program)
    session.adopt(derivation)
    assert check_record(session.record()).kind == "proved"
