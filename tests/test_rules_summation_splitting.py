"""Summation splitting keeps every value under every monoid, and refuses empty groups and strangers."""

from itertools import permutations

import pytest
from hypothesis import given

from einnet_explore.analysis.canonical_keys import canonical_key, program_key
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Bound, Iterator, Program, Scope, Tensor, as_index, program
from einnet_explore.rules import SUMMATION_SPLITTING, Refused, rule
from einnet_explore.rules import summation_splitting as module
from einnet_explore.syntax import parse
from tests.rules_kit import assert_equal, check_rule, contractions, refuses
from tests.strategies import programs

START = parse("""
    tensor A[4, 3] pad [0, 1]
    Y[h:4] = sum[r:3, s:2, c:2] A[h, r+s-1] * A[h, c]
""")


@given(programs(equations=2))
def test_splitting_keeps_the_value(start: Program) -> None:
    check_rule(SUMMATION_SPLITTING, start)


@given(contractions(reductions=("sum", "max", "min", "prod")))
def test_it_keeps_the_value_of_contractions_under_every_monoid(start: Program) -> None:
    count = check_rule(SUMMATION_SPLITTING, start)
    plain = [m for m in SUMMATION_SPLITTING.matches(start, (0,)) if not m.params.apart]
    assert len(plain) == (2 if len(start.scope_at((0,)).summations) == 2 else 0)
    assert len(plain) <= count <= 2 * len(plain)


def outers(start: Program) -> list[list[str]]:
    """The outer groups of the plain splits proposed."""
    return [m.to_json()["params"]["outer"] for m in SUMMATION_SPLITTING.matches(start, (0,)) if not m.params.apart]


def test_every_proper_subset_is_proposed() -> None:
    found = outers(START)
    assert found == [["r"], ["s"], ["c"], ["s", "r"], ["c", "r"], ["s", "c"]]


def test_the_order_in_which_a_sum_is_written_makes_no_other_layout() -> None:
    """The outer summations become traversals, whose order is the layout: it comes from the indices."""
    text = "tensor A[4, 3, 5] pad [1, 0, 0]\ntensor B[3, 5]\nY[h:4] = sum[{}] A[h+r-1, s, c] * B[s, c]"
    written = [parse(text.format(", ".join(sums))) for sums in permutations(("r:3", "s:3", "c:5"))]
    found = [
        {canonical_key(m.apply(start).after.scope_at((0,))) for m in SUMMATION_SPLITTING.matches(start, (0,))}
        for start in written
    ]
    assert len(set(map(program_key, written))) == 1
    assert all(keys == found[0] for keys in found)
    assert ["r", "s", "c"] not in outers(written[0]) and ["r", "s"] in outers(written[-1])


def test_many_summations_are_split_by_role() -> None:
    start = parse("""
        tensor A[2, 2, 2, 2]
        tensor B[2, 2, 2]
        Y[x:1] = sum[a:2, b:2, c:2, d:2, e:2, f:2] A[a, b, c, d] * B[d, e, f]
    """)
    found = outers(start)
    assert found == [
        ["a", "b", "c"],
        ["d"],
        ["e", "f"],
        ["a", "d", "b", "c"],
        ["a", "b", "e", "c", "f"],
        ["d", "e", "f"],
    ]


def test_many_roles_are_taken_one_by_one() -> None:
    names = "abcdefg"
    reads = " * ".join(f"A[{x}]" for x in names)
    start = parse(f"tensor A[2]\nY[x:1] = sum[{', '.join(f'{x}:2' for x in names)}] {reads}")
    assert [outer[0] for outer in outers(start)] == list(names)


def scope_with_domain(pad: int) -> Program:
    """Rows 1 and 2 are computed, the others are 7; without padding the other rows cannot be read."""
    h, r, s = Iterator("h", 0, 4), Iterator("r", 0, 3), Iterator("s", 0, 2)
    source = Tensor("A", (2, 3, 2), ((pad, pad), (0, 0), (0, 0)) if pad else ())
    return program(Scope((h,), (r, s), source[h - 1, r, s], domain=(Bound(as_index(h), 1, 3),), value=7))


def test_domain_stays_with_the_outer_scope() -> None:
    start = scope_with_domain(1)
    after = SUMMATION_SPLITTING.match(start, (0,), outer=["r"]).apply(start).after
    assert after.scope_at((0,)).domain == start.scope_at((0,)).domain and after.scope_at((0,)).value == 7
    assert after.scope_at((0, 0)).domain == ()
    assert_equal(start, after)


def test_the_domain_guards_the_inner_reads_where_it_must() -> None:
    start = scope_with_domain(0)
    after = SUMMATION_SPLITTING.match(start, (0,), outer=["r"]).apply(start).after
    assert after.scope_at((0, 0)).domain == after.scope_at((0,)).domain != ()
    assert_equal(start, after)


def test_splitting_without_two_groups_is_refused() -> None:
    refuses(SUMMATION_SPLITTING, START, (0,), "both groups need an iterator: s1 = {}, s2 = {r, s, c}", outer=[])
    everything = "both groups need an iterator: s1 = {r, s, c}, s2 = {}"
    refuses(SUMMATION_SPLITTING, START, (0,), everything, outer=["r", "s", "c"])
    refuses(SUMMATION_SPLITTING, START, (0,), "s1 = {r, r} names an iterator twice", outer=["r", "r"])
    refuses(SUMMATION_SPLITTING, START, (0,), "{h} is not summed here: the summations are {r, s, c}", outer=["h"])
    refuses(SUMMATION_SPLITTING, START, (0,), "the parameter 'outer' is missing")


CHAIN = """
    tensor A[2, 3]
    tensor B[3, 4]
    tensor C[4, 5]
    Y[i:2, l:5] = sum[j:3, k:4] A[i, j] * B[j, k] * C[k, l]
"""


@pytest.mark.parametrize(
    ("outer", "after"),
    [
        ("j", "Y[i:2, l:5] = sum[j:3] A[i, j] * {[j:3, l:5] sum[k:4] B[j, k] * C[k, l]}[j, l]"),
        ("k", "Y[i:2, l:5] = sum[k:4] C[k, l] * {[k:4, i:2] sum[j:3] A[i, j] * B[j, k]}[k, i]"),
    ],
)
def test_chain_is_reassociated(outer: str, after: str) -> None:
    start = parse(CHAIN)
    made = SUMMATION_SPLITTING.match(start, (0,), outer=[outer], apart=True).apply(start).after
    assert made == parse(CHAIN.rsplit("Y", 1)[0] + after)
    assert_equal(start, made)
    assert certify(start, made).kind == "proved"
    assert {"outer": [outer], "apart": True} in [
        m.to_json()["params"] for m in SUMMATION_SPLITTING.matches(start, (0,))
    ]


def test_splitting_apart_is_refused_without_independent_factors() -> None:
    nothing = parse("tensor A[2, 3, 4]\nY[i:2] = sum[j:3, k:4] A[i, j, k] * A[i, j, k]")
    refuses(
        SUMMATION_SPLITTING,
        nothing,
        (0,),
        "every factor reads an iterator of s2 = {k}: none can stay outside",
        outer=["j"],
        apart=True,
    )
    largest = parse("tensor A[2, 3]\ntensor B[3, 4]\nY[i:2] = max[j:3, k:4] A[i, j] * B[j, k]")
    says = "'apart' needs a sum, the scope reduces by max"
    refuses(SUMMATION_SPLITTING, largest, (0,), says, outer=["j"], apart=True)
    none = parse("tensor A[2, 3]\nY[i:2] = sum[j:3, k:4] A[i, j] * A[i, j]")
    refuses(SUMMATION_SPLITTING, none, (0,), "no factor reads s2 = {k}", outer=["j"], apart=True)
    infinite = parse("tensor A[2, 3]\ntensor B[3, 4] pad [0, 1] value inf\nY[i:2] = sum[j:3, k:4] A[i, j] * B[j, k+1]")
    says = "'apart' needs finite paddings: 0 times infinity is undefined"
    refuses(SUMMATION_SPLITTING, infinite, (0,), says, outer=["j"], apart=True)
    reads = parse("tensor A[3]\ntensor D[2, 4]\nY[i:4 | 0 <= i < 2] = sum[j:3, k:4] A[j] * D[i, k]")
    says = "with 'apart', the inner scope has no domain and reads beyond its sources: "
    refuses(SUMMATION_SPLITTING, reads, (0,), says, outer=["j"], apart=True)


def test_unknown_summations_are_refused() -> None:
    with pytest.raises(Refused, match=r"\{q\} is not summed here: the summations are \{r, s, c\}"):
        module.rewrite(START.scope_at((0,)), module.Splitting((Iterator("q", 0, 2),)))


def test_rules_are_found_by_name() -> None:
    assert rule("summation_splitting") is SUMMATION_SPLITTING
    with pytest.raises(LookupError, match="no rule is called 'summation-splitting': there are summation_splitting, "):
        rule("summation-splitting")
