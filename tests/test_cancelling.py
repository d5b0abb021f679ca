"""Terms on both sides cancel; the remaining terms decide the comparison."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.integer_sets import TermSets, bounded_context
from einnet_explore.equivalence.linear_space import Form, TermSpace
from einnet_explore.equivalence.term_multiset import cancel_common_terms, same_term_sets, term_key
from einnet_explore.equivalence.term_relation import Term, terms_at
from einnet_explore.syntax import parse

TABLE = "table[4, 6](1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0, 0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1)"
"""What turns the products of F(4, 3) into its results."""


def certificate(before: str, after: str) -> Certificate:
    tensors = "tensor v[40]\ntensor A[9, 9]\ntensor X[6, 6, 8, 7, 4]\ntensor L[6, 6, 5, 4] weight\n"
    return certify(parse(tensors + before), parse(tensors + after))


def space_of(*ranges: tuple[int, int]) -> TermSpace:
    return TermSpace(tuple((lo, hi + 1) for lo, hi in ranges), lambda a, b: a == b)


def read(form: Form) -> tuple[tuple[str, tuple[Form, ...]], ...]:
    return (("A", (form,)),)


def test_terms_with_other_names_cancel_and_others_stay() -> None:
    space = space_of((0, 3))
    y, z, u = space.fresh("y", 0, 4), space.fresh("y", 0, 4), space.fresh("y", 0, 5)
    one = Term(Fraction(1), read({"x0": 1, y: 2, "": 1}), (y,))
    renamed = Term(Fraction(1), read({"x0": 1, z: 2, "": 1}), (z,))
    longer = Term(Fraction(1), read({"x0": 1, u: 2, "": 1}), (u,))
    assert term_key(space, one) == term_key(space, renamed) != term_key(space, longer)
    assert cancel_common_terms(space, [one, longer], [renamed]) == ([longer], [])
    assert cancel_common_terms(space, [one, one], [renamed]) == (
        [Term(Fraction(2), one.factors, one.summed)],
        [renamed],
    )
    assert cancel_common_terms(space, [one, Term(Fraction(-1), renamed.factors, renamed.summed)], []) == ([], [])
    assert same_term_sets(space, [one, one, longer], [longer, renamed]) and not same_term_sets(
        space, [one, longer], [one]
    )


def test_conditions_multiplicities_and_meanings_count() -> None:
    space = space_of((0, 9))
    y, z = space.fresh("y", 0, 4), space.fresh("y", 0, 4)
    plain = Term(Fraction(1), read({"x0": 1, "": 0}))
    twice = Term(Fraction(1), read({"x0": 1, "": 0}), (y,))
    held = Term(Fraction(1), read({"x0": 1, "": 0}), (), ({"x0": 1, "": -1},))
    assert len({term_key(space, t) for t in (plain, twice, held)}) == 3
    (x,) = space.point
    by_two, by_three = space._divide({**x, y: 1}, 2), space._divide({**x, y: 1}, 3)
    other = space._divide({**x, z: 1}, 2)
    terms = [Term(Fraction(1), read(q), (v,)) for q, v in ((by_two, y), (by_three, y), (other, z))]
    keys = [term_key(space, t) for t in terms]
    assert keys[0] == keys[2] != keys[1]


def test_infinite_constants_do_not_cancel() -> None:
    space = space_of((0, 3))
    one, other = Term(inf, read({"x0": 1, "": 0})), Term(Fraction(1), read({"x0": 1, "": 0}))
    assert cancel_common_terms(space, [one, other], [one]) == ([one, other], [one])
    assert cancel_common_terms(space, [one, other], [other, one]) == ([], [])


def test_a_layout_of_many_terms_is_proved_without_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "Y[n:1, h:30, w:27, f:5] = sum[p:6, q:6] "
    before = (
        "M[p:6, q:6, t:8, u:7, f:5] = sum[k:4] X[p, q, t, u, k]*L[p, q, f, k]\n"
        f"{head}{TABLE}[h%4, p]*{TABLE}[w%4, q]*M[p, q, h//4, w//4, f]"
    )
    after = (
        "M[p:6, t:8, q:6, u:7, f:5] = sum[k:4] X[p, q, t, u, k]*L[p, q, f, k]\n"
        f"{head}{TABLE}[h%4, p]*{TABLE}[w%4, q]*M[p, h//4, q, w//4, f]"
    )
    made = 0
    of = TermSets.of

    def counted(self: TermSets, term: Term) -> object:
        nonlocal made
        made += 1
        return of(self, term)

    monkeypatch.setattr(TermSets, "of", counted)
    assert certificate(before, after).kind == "proved" and made == 0
    wrong = certificate(before, after.replace("L[p, q, f, k]", "L[p, q, f, 3-k]").replace("k:4", "k:3"))
    assert wrong.kind == "false"


def test_digits_of_digits_are_one_number() -> None:
    """h2 % 4 where h2 is z // 2, and what the index arithmetic makes of it: no set is needed to see that."""
    before = "Z[a:2, b:20] = v[2*b+a]\nY[z:40] = {[a:2, b:20] Z[a, b//4*4 + b%4]}[z%2, z//2]"
    after = "Z[b:20, a:2] = v[2*b+a]\nY[z:40] = Z[z//8*4 + (z//2)%4, z%2]"
    assert certificate(before, after).kind == "proved"
    assert certificate(before, after.replace("z//8*4", "z//8*3")).kind == "false"


def test_counterexample_counts_terms_before_cancellation() -> None:
    found = certificate("Y[i:4] = v[i] + v[i+1] + v[i]", "Y[i:4] = v[i] + v[i+1] + v[i+2]")
    assert found.counterexample == "element [0]: v[0] occurs 2 times before and 1 time after"
    shared = certificate("Y[i:4] = sum[k:3] v[i+k] + v[0]", "Y[i:4] = sum[k:3] v[i+k] + v[1]")
    assert shared.kind == "false" and "occurs" in str(shared.counterexample)


def test_the_last_digits_of_folded_constants_are_a_bounded_difference() -> None:
    found = certificate("Y[i:4] = 0.1*v[i] + 0.2*v[i] + v[i+1]", "Y[i:4] = 0.3*v[i] + v[i+1]")
    assert found.kind == "rounded" and 0 < found.error < 1e-15


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=4), st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_bounds_of_remainders_hold_and_are_never_wider(
    divisors: list[tuple[int, int]], scale: int, data: st.DataObject
) -> None:
    """Digits of digits: every value lies in the bounds; a remainder's are those of a remainder."""
    space = space_of((0, 47))
    (x,) = space.point
    form, value = x, (at := data.draw(st.integers(0, 47)))
    values: dict[str, int] = {"x0": at}
    for d, shift in divisors:
        shifted = {**form, "": form[""] + shift}
        quotient = space._divide(shifted, d + 1)
        for q, (e, by) in space.quotients.items():
            values[q] = (e[""] + sum(k * values[v] for v, k in e.items() if v)) // by
        remainder = {v: shifted.get(v, 0) - (d + 1) * quotient.get(v, 0) for v in {**shifted, **quotient}}
        scaled = {v: scale * k for v, k in remainder.items()}
        lo, hi = space.bounds(scaled)
        told = scaled[""] + sum(k * values[v] for v, k in scaled.items() if v)
        assert lo <= told <= hi and lo >= 0 and hi <= scale * d
        assert told == scale * ((value + shift) % (d + 1))
        form, value = quotient, (value + shift) // (d + 1)
        assert form[""] + sum(k * values[v] for v, k in form.items() if v) == value


def test_sets_are_those_of_their_conditions() -> None:
    """The integer sets of a scope's terms contain exactly the points that satisfy the conditions."""
    text = "tensor A[9, 9]\nY[i:5, j:6] = {[a:4, b:7] sum[k:3] A[(a+k)//2, b%3]} pad [(1, 0), 0][(i+j)%4-1, (i+2*j)//3]"
    scope = parse(text).equations[0].scope
    space = TermSpace(scope.box, lambda a, b: a == b)
    found: set[tuple[int, ...]] = set()
    for term in terms_at(space, scope, space.point):
        _, points = TermSets(space, bounded_context(), counted=False).of(term)
        points.foreach_point(
            lambda p: found.add(tuple(p.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(4)))
        )
    expected = {
        (i, j, ((i + j) % 4 - 1 + k) // 2, (i + 2 * j) // 3 % 3)
        for i in range(5)
        for j in range(6)
        for k in range(3)
        if (i + j) % 4 and (i + 2 * j) // 3 < 7
    }
    assert found == expected
