"""Index maps that are equal up to their iterators, and dependences between equations."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.analysis.concatenation import Alignment, Reading, align_readings
from einnet_explore.analysis.equations import (
    ancestors,
    check_independence,
    constant_tensors,
    exchange_equations,
    find_equation,
    fresh_names,
    resolve_access,
    weight_only,
)
from einnet_explore.ir import Equation, Index, Iterator, accesses, as_index
from einnet_explore.syntax import parse


def index(terms: list[tuple[Iterator, int]], const: int = 0) -> Index:
    total = as_index(const)
    for x, k in terms:
        total = total + x * k
    return total


def agrees(first: Reading, second: Reading, found: Alignment) -> bool:
    """Whether both are one function of the first's iterators, once what only one of them sums has its value."""

    def theirs(y: Iterator) -> Index:
        if y in found.extra:
            return as_index(found.extra[y])
        x, by = found.shift[y]
        return x + by

    return all(
        i.substitute(lambda x: found.held.get(x, x)) == j.substitute(theirs)
        for i, j in zip(first.index, second.index, strict=True)
    )


def attempt(first: Reading, second: Reading) -> tuple[Alignment | None, str]:
    try:
        return align_readings(first, second), ""
    except ValueError as why:
        return None, str(why)


@given(st.data())
def test_renamed_shifted_and_windowed_readings_align(data: st.DataObject) -> None:
    """Every dimension reads a traversal and perhaps a window, under other names, from other places on."""
    ours, theirs, summed, also = list[Index](), list[Index](), set[Iterator](), set[Iterator]()
    for d in range(data.draw(st.integers(1, 4))):
        k, j = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 1, 2, -1]))
        lo, n = data.draw(st.integers(-2, 2)), data.draw(st.integers(2, 9))
        x, y = Iterator(f"x{d}", lo, lo + n), Iterator(f"v{9 - d}", lo + 1, lo + n + 1)
        one, other = [(x, k)], [(y, k)]
        for terms, name, which in ((one, "r", summed), (other, "w", also)):
            if data.draw(st.booleans()):
                r = Iterator(f"{name}{d}", 0, data.draw(st.integers(2, 4)))
                which.add(r)
                terms.append((r, j))
        ours.append(index(one, data.draw(st.integers(-2, 2))))
        theirs.append(index(other, data.draw(st.integers(-2, 2))))
    first, second = Reading(tuple(ours), frozenset(summed)), Reading(tuple(theirs), frozenset(also))
    found, why = attempt(first, second)
    assert agrees(first, second, found) if found else "is read at" in why
    same = align_readings(first, first)
    assert agrees(first, first, same) and all(x == y and by == 0 for y, (x, by) in same.shift.items())


def test_single_tap_aligns_with_a_larger_window() -> None:
    h, w, r = Iterator("h", 0, 6), Iterator("w", 0, 6), Iterator("r", 0, 3)
    wide, narrow = Reading((h + r - 1,), frozenset({r})), Reading((as_index(w),), frozenset())
    assert align_readings(wide, narrow) == Alignment({w: (h, 0)}, {r: 1}, {})
    assert align_readings(narrow, wide) == Alignment({h: (w, 0)}, {}, {r: 1})


def test_quotient_and_remainder_align_together() -> None:
    m, n = Iterator("m", 0, 20), Iterator("n", 0, 20)
    first, second = (Reading((x // 5, x % 5), frozenset()) for x in (m, n))
    assert align_readings(first, second).shift == {n: (m, 0)}
    with pytest.raises(ValueError, match=r"dimension 1 is read at m % 5 \(m ∈ \[0, 20\)\) and at n % 4"):
        align_readings(first, Reading((n // 5, n % 4), frozenset()))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda h, w, r: (2 * h, w + r), "dimension 0 is read at h (h ∈ [0, 6)) and at 2*h (h ∈ [0, 6))"),
        (lambda h, w, r: (as_index(h),), "one reads 2 dimensions, the other 1"),
        (lambda h, w, r: (as_index(h), h + r), "no matching of iterators makes [h, r+w] and [h, h+r] one"),
        (lambda h, w, r: (as_index(r), w + r), "dimension 0 is read at h (h ∈ [0, 6)) and at r (r ∈ [0, 3) summed)"),
    ],
)
def test_misaligned_dimension_is_named(second: object, message: str) -> None:
    h, w, r = Iterator("h", 0, 6), Iterator("w", 0, 7), Iterator("r", 0, 3)
    first = Reading((as_index(h), w + r), frozenset({r}))
    with pytest.raises(ValueError, match=re.escape(message)):
        align_readings(first, Reading(second(h, w, r), frozenset({r})))  # type: ignore[operator]


PROGRAM = parse("""
    tensor A[4, 6]
    tensor W[6] weight
    B[i:6, j:4] = A[j, i]
    C[k:24] = B[k//4, k%4]
    D[i:6] = 2*W[i]
    E[k:24] = C[k] + D[k//4]
    F[k:22] = C[k+2]
    output E, F
""")


def test_reads_resolve_through_what_only_moves() -> None:
    (read,) = (a for a in accesses(find_equation(PROGRAM, "F").scope.body))
    through = resolve_access(PROGRAM, read)
    assert repr(through) == "A[(k+2) % 4, (k+2) // 4]"
    (first, _) = accesses(find_equation(PROGRAM, "E").scope.body)
    assert repr(resolve_access(PROGRAM, first)) == "A[k % 4, k // 4]"


def test_ancestors_and_dependence_between_equations() -> None:
    assert ancestors(PROGRAM)["E"] == {"B", "C", "D"}
    check_independence(PROGRAM, ("E", "F"))
    with pytest.raises(ValueError, match=r"^E reads B, directly or through others: they are not independent$"):
        check_independence(PROGRAM, ("E", "B"))
    assert constant_tensors(PROGRAM) == {"W", "D"} and weight_only(PROGRAM) == {"D"}
    assert fresh_names(PROGRAM, "A", "A", "Z") == ("A1", "A2", "Z1")
    with pytest.raises(ValueError, match="no equation is called 'Z': there are B, C, D, E, F"):
        find_equation(PROGRAM, "Z")


def test_exchanged_equations_stand_in_order_and_dead_ones_go() -> None:
    scope = find_equation(PROGRAM, "D").scope
    new = parse("tensor D1[6]\ntensor C[24]\nE[k:24] = C[k] + D1[k//4]").equations[0]
    after = exchange_equations(PROGRAM, {"E": new}, [Equation("D1", scope)])
    assert [e.name for e in after.equations] == ["D1", "B", "C", "E", "F"]
