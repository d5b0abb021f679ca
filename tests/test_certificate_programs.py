"""Equations that are merged, turned, put into one another and taken apart: compared where they meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rebuilding import BODIES

from einnet_check import certificate as alone
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.program_diff import EquationDefinitions, outermost_names
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Bound, Const, Equation, Iterator, Program, Scope, Tensor, as_index
from einnet_explore.syntax import parse

INPUTS = "tensor x[4, 4]\ntensor u[4, 4] weight\ntensor v[4, 4] weight\ntensor w[4, 4] weight\n"
AT = "[m:4, n:4] = "
OUT = "\noutput Y1, Y2, Y3, Y4, Y5"


def product(name: str, left: str, right: str) -> str:
    return f"{name}{AT}sum[k:4] {left} * {right}"


def text(*lines: str) -> str:
    return INPUTS + "\n".join(lines) + OUT


READ = (
    f"Y1{AT}{{0}}[{{1}}m, n] + x[m, n]",
    f"Y2{AT}relu({{0}}[{{1}}n, m])",
    "Y3[n:4] = sum[m:4] {0}[{1}m, n]*x[n, m]",
    f"Y4{AT}{{2}}[{{3}}m, n]*{{0}}[{{1}}m, n]",
    "Y5[n:4] = max[m:4] {4}[{5}m, n]",
)
"""Five outputs, which read three products."""


def readers(*read: str) -> tuple[str, ...]:
    return tuple(line.format(*read) for line in READ)


PRODUCTS = (product("P", "x[m, k]", "u[k, n]"), product("Q", "x[m, k]", "v[k, n]"), product("R", "x[m, k]", "w[k, n]"))
PLAIN = text(*PRODUCTS, *readers("P", "", "Q", "", "R", ""))
STACK = "B[b:3, k:4, n:4] = {0}[b, k, n] + {1}[b-1, k, n] + {2}[b-2, k, n]"
PART = "{{[b:1, k:4, n:4] {0}[k, n]}} pad [{1}, 0, 0]"
PADS = ("(0, 2)", "(1, 1)", "(2, 0)")
MERGED_PRODUCT = "M[b:3, m:4, n:4] = sum[k:4] x[m, k] * B[b, k, n]"
PARTS = tuple(f"{name}{AT}M[{b}, m, n]" for b, name in enumerate("PQR"))
SLICES = ("M", "0, ", "M", "1, ", "M", "2, ")


def stack(*of: str) -> str:
    return STACK.format(*(PART.format(name, pad) for name, pad in zip(of, PADS, strict=True)))


def merged(*lines: str, of: str = "uvw", whole: str = MERGED_PRODUCT) -> str:
    return text(stack(*of), whole, *lines)


def parts(*which: int) -> tuple[str, ...]:
    """P, Q and R as these parts of M."""
    return tuple(f"{name}{AT}M[{b}, m, n]" for b, name in zip(which, "PQR", strict=True))


RIGHT = {
    "parts of their names": merged(*PARTS, *readers("P", "", "Q", "", "R", "")),
    "parts read where they lie": merged(*readers(*SLICES)),
    "some here, some there": merged(PARTS[1], *readers("M", "0, ", "Q", "", "M", "2, ")),
    "turned over": merged(*parts(2, 1, 0), *readers("P", "", "M", "1, ", "M", "0, "), of="wvu"),
    "names exchanged": merged(*parts(1, 0, 2), *readers("Q", "", "P", "", "R", "")),
    "one product transposed": text(
        product("P", "u[k, m]", "x[n, k]"), *PRODUCTS[1:], *readers("P", "", "Q", "", "R", "")
    ).replace("P[m, n]", "P[n , m]").replace("P[n, m]", "P[m, n]"),
    "a product in its readers": text(
        *PRODUCTS[1:], *readers("{[m:4, n:4] sum[k:4] x[m, k] * u[k, n]}", "", "Q", "", "R", "")
    ),
    "other names, other order": text(
        product("R", "x[m, k]", "u[k, n]"), product("P", "x[m, k]", "v[k, n]"), product("Q", "x[m, k]", "w[k, n]"),
        *readers("R", "", "P", "", "Q", "")[::-1],
    ),
}  # fmt: skip

WRONG = {
    "parts exchanged": merged(*parts(1, 0, 2), *readers("P", "", "Q", "", "R", "")),
    "parts exchanged for the last reader": merged(*readers(*SLICES[:4], "M", "1, ")),
    "one weight for two": merged(*PARTS, *readers("P", "", "Q", "", "R", ""), of="uvv"),
    "the weights exchanged": merged(*PARTS, *readers("P", "", "Q", "", "R", ""), of="vuw"),
    "a term lost that one output reads": merged(
        *PARTS, *readers("P", "", "Q", "", "R", ""), whole=MERGED_PRODUCT.replace("x[m, k]", "where(b < 2, x[m, k], 0)")
    ),
    "a term lost at one corner": merged(
        *readers(*SLICES), whole=MERGED_PRODUCT.replace("x[m, k]", "where(b+m+k < 8, x[m, k], 0)")
    ),
    "a sum too short": merged(*PARTS, *readers("P", "", "Q", "", "R", ""), whole=MERGED_PRODUCT.replace("k:4", "k:3")),
    "weights that overlap": merged(*PARTS, *readers("P", "", "Q", "", "R", "")).replace(
        "{[b:1, k:4, n:4] v[k, n]} pad [(1, 1)", "{[b:2, k:4, n:4] v[k, n]} pad [(1, 0)"
    ),
    "a part transposed": merged(f"P{AT}M[0, n, m]", *PARTS[1:], *readers("P", "", "Q", "", "R", "")),
    "one reader transposed": merged(*readers(*SLICES)).replace("M[0, n, m]", "M[0, m, n]"),
    "a name that means something else": text(
        product("P", "x[m, k]", "v[k, n]"), product("Q", "x[m, k]", "u[k, n]"), PRODUCTS[2],
        *readers("P", "", "Q", "", "R", "")
    ),
    "a name that means something else, for one reader": text(
        product("P", "x[m, k]", "v[k, n]"), product("Q", "x[m, k]", "u[k, n]"), PRODUCTS[2],
        *readers("Q", "", "P", "", "P", "")
    ),
    "outputs exchanged": PLAIN.replace("Y3[", "Y0[").replace("Y5[", "Y3[").replace("Y0[", "Y5["),
    "twice and once": merged(*readers(*SLICES)).replace("M[0, m, n] + x", "M[0, m, n] + M[0, m, n] + x"),
    "a result less itself": merged(*PARTS, *readers("P", "", "Q", "", "R", "")).replace("+ x[m, n]", "+ Q[m, n]"),
}  # fmt: skip


def prove(before: str, after: str) -> Certificate:
    return certify(parse(before), parse(after), exact_elements=None)


def engine(before: str, after: str) -> bool:
    return prove(before, after).kind == "proved"


def checker(before: str, after: str) -> bool:
    steps = [{"rule": "expression_fusion", "at": "0", "params": {}, "after": after}]
    record = {"format": "einnet-explore record", "version": 1, "start": before, "steps": steps}
    return bool(alone(record)["kind"] == "proved")


def same(before: Program, after: Program) -> bool:
    """The truth, on wide random integers."""
    for seed in range(3):
        random = np.random.default_rng(seed)
        inputs = {t.name: random.integers(-999, 1000, t.shape) for t in before.inputs}
        left, right = (evaluate(p, inputs, outputs_only=True) for p in (before, after))
        if any(not np.array_equal(left[name], right[name]) for name in left):
            return False
    return True


BOTH = [engine, checker]


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", RIGHT)
def test_correct_merge_is_proved_in_both_directions(name: str, believes: Callable[[str, str], bool]) -> None:
    assert same(parse(PLAIN), parse(RIGHT[name]))
    assert believes(PLAIN, RIGHT[name]) and believes(RIGHT[name], PLAIN)


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_merge_is_not_proved(name: str, believes: Callable[[str, str], bool]) -> None:
    assert not same(parse(PLAIN), parse(WRONG[name]))
    assert not believes(PLAIN, WRONG[name]) and not believes(WRONG[name], PLAIN)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_merge_is_false_with_a_counterexample(name: str) -> None:
    found = certify(parse(PLAIN), parse(WRONG[name]))
    assert found.kind == "false" and found.counterexample is not None


ENDS = "tensor a[4]\nT[i:4] = where(i < 3, -inf, a[i])\n"
KEPT = "\noutput T, S, Y"
INFINITE = {
    "two parts of one": (
        "S[i:4] = 2*a[i]\nY[i:4] = a[i]",
        "M[b:2, i:4] = T[i]\nS[i:4] = 2*a[i]\nY[i:4] = a[i] + M[0, i] - M[1, i]",
    ),
    "five times less four times": (
        "S[i:4] = 2*a[i]\nY[i:4] = T[i]", "S[i:4] = 2*a[i]\nV[i:4] = 5*T[i]\nW[i:4] = 4*T[i]\nY[i:4] = V[i] - W[i]"
    ),
    "a sum with a name": (
        "S[i:4] = a[i] + a[3-i]\nY[i:4] = T[i]*a[i] + T[i]*a[3-i]", "S[i:4] = a[i] + a[3-i]\nY[i:4] = T[i]*S[i]"
    ),
    "nothing, with a name": (
        "S[i:4] = a[i] - a[i]\nY[i:4] = 0*a[i]", "S[i:4] = a[i] - a[i]\nY[i:4] = S[i]*T[i]"
    ),
    "another that is infinite": (
        "S[i:4] = T[3-i]\nY[i:4] = a[i]", "S[i:4] = T[3-i]\nY[i:4] = a[i] + S[i] - T[3-i]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", INFINITE)
def test_possible_infinities_do_not_cancel_through_names(name: str, believes: Callable[[str, str], bool]) -> None:
    before, after = (ENDS + side + KEPT for side in INFINITE[name])
    assert believes(before, before)
    assert not believes(before, after) and not believes(after, before)


TURNED = (
    "tensor a[4, 4]\nT[i:4, j:4] = relu(a[{}])\nY[i:4, j:4] = T[i, j] + T[j, i]\nZ[i:4, j:4] = T[i, j]\noutput Y, Z"
)
NAMES = {
    "an input becomes a result": (
        "tensor a[4]\ntensor b[4]\nT[i:4] = a[i]\nY[i:4] = T[i] + b[i]",
        "tensor a[4]\nb[i:4] = 2*a[i]\nT[i:4] = a[i]\nY[i:4] = T[i] + b[i]",
    ),
    "a result becomes an input's name elsewhere": (
        "tensor a[4]\ntensor b[4]\nT[i:4] = b[i]\nU[i:4] = T[i]\nY[i:4] = U[i]",
        "tensor a[4]\ntensor b[4]\nU[i:4] = a[i]\nT[i:4] = U[i]\nY[i:4] = U[i]",
    ),
    "each would be proved by the other": (
        "tensor a[4]\nT[i:4] = a[i]\nU[i:4] = T[i]\nY[i:4] = T[i] + U[i]",
        "tensor a[4]\nU[i:4] = 2*a[i]\nT[i:4] = U[i]\nY[i:4] = T[i] + U[i]",
    ),
    "mended for one reader only": (
        "tensor a[4]\nT[i:4] = a[i] + 1\nY[i:4] = T[i] - 1\nZ[i:4] = 2*T[i]\noutput Y, Z",
        "tensor a[4]\nT[i:4] = a[i] + 2\nY[i:4] = T[i] - 2\nZ[i:4] = 2*T[i]\noutput Y, Z",
    ),
    "turned for one reader only": (
        TURNED.format("i, j"),
        TURNED.format("j, i"),
    ),
    "what only reads an output": (
        "tensor a[4]\nT[i:4] = a[i]\nY[i:4] = T[i] + a[i]\noutput Y",
        "tensor a[4]\nY[i:4] = 5*a[i]\nT[i:4] = 2*Y[i]\noutput Y",
    ),
    "what only reads an output, turned": (
        "tensor a[4]\nT[i:4] = a[i]\nY[i:4] = relu(T[i] - T[0])\nZ[i:4] = Y[i] + T[i]\noutput Y",
        "tensor a[4]\nU[i:4] = a[i]\nY[i:4] = relu(U[0] - U[i])\nZ[i:4] = Y[3-i]\nT[i:4] = 3*Z[i]\noutput Y",
    ),
    "another padding": (
        "tensor a[4]\nT[i:4] = a[i] pad [1]\nY[i:6] = T[i-1]",
        "tensor a[4]\nT[i:4] = a[i] pad [1] value 1\nY[i:6] = T[i-1]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_programs_that_differ_behind_equal_names_are_not_equal(name: str, believes: Callable[[str, str], bool]) -> None:
    before, after = NAMES[name]
    assert believes(before, before) and believes(after, after)
    assert not believes(before, after) and not believes(after, before)
    assert not certify(parse(before), parse(after)).ok


A4, AT_2, AROUND = Tensor("A", (4,)), Tensor("A", (4,), origin=(2,)), Tensor("T", (4,), ((1, 1),))
I2, I4, J4, WIDE = Iterator("i", 0, 2), Iterator("i", 0, 4), Iterator("j", 0, 4), Iterator("i", -1, 5)


def of_a(*scopes: Scope, given: tuple[Tensor, ...] = (A4,), outputs: tuple[str, ...] = ("Y",)) -> Program:
    """A program of *scopes*, the last of which is Y."""
    names = [f"{'STUV'[n]}" for n in range(1, len(scopes))] + ["Y"]
    return Program(given, tuple(Equation(name, scope) for name, scope in zip(names, scopes, strict=True)), outputs)


FIVE = Scope((J4,), (), A4[J4,], padding=((1, 1),), value=5)
ILL_FORMED = {
    "an input that begins elsewhere": (
        of_a(Scope((I2,), (), A4[I2 + 2,])),
        of_a(Scope((I2,), (), AT_2[I2 + 2,]), given=(AT_2,)),
        "input A has box [2, 6), expected [0, 4)",
    ),
    "a value outside that readers do not know": (
        of_a(Scope((WIDE,), (), FIVE[WIDE,])),
        of_a(replace(FIVE, padding=()), Scope((WIDE,), (), AROUND[WIDE,])),
        "Y reads T in [-1, 5), but it reaches over [0, 4)",
    ),
    "a value outside of a domain": (
        of_a(Scope((WIDE,), (), replace(FIVE, domain=(Bound(as_index(J4), 1, 3),))[WIDE,])),
        of_a(replace(FIVE, padding=(), domain=(Bound(as_index(J4), 1, 3),)), Scope((WIDE,), (), AROUND[WIDE,])),
        "Y reads T in [-1, 5), but it reaches over [0, 4)",
    ),
    "an iterator that is summed, too": (
        of_a(Scope((I4,), (J4,), A4[J4,])),
        of_a(Scope((I4,), (I4,), A4[I4,])),
        "Y: an iterator runs twice in one scope, of i, i",
    ),
    "an iterator that is summed twice, in a scope inside": (
        of_a(Scope((I4,), (J4, WIDE), A4[J4,])),
        of_a(Scope((I4,), (), Scope((I4,), (J4, J4), A4[J4,])[I4,])),
        "Y: an iterator runs twice in one scope, of i, j, j",
    ),
    "an output that was an input and is none": (
        of_a(Scope((I4,), (), Const(1)), outputs=("Y", "A")),
        of_a(Scope((I4,), (), Const(1)), given=(), outputs=("Y", "A")),
        "output A is nothing, expected the input of this name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ILL_FORMED)
def test_ill_formed_program_is_false(name: str) -> None:
    before, after, why = ILL_FORMED[name]
    assert certify(before, before).kind == "proved"
    found = certify(before, after)
    assert (found.kind, found.counterexample) == ("false", why)


DEEP = 6
TABLE = "table[4, 6](1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0, 0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1)"


def deep(*lines: str) -> str:
    """Results of results of tables: to put them all into one another makes more terms than may be compared."""
    sums = "\n".join(
        f"A{n + 1}[i:4] = sum[p:6] {TABLE}[i, p] * {{[p:6, i:4] A{n}[(i+p)%4]}}[p, i]" for n in range(DEEP)
    )
    return f"tensor A0[4]\n{sums}\n" + "\n".join(lines)


MEETS = {
    "a part of what is made of it": (
        "V[i:4] = A6[i]\nY[i:4] = V[i]*A6[3-i]",
        "W[b:2, i:4] = A6[i]\nY[i:4] = W[1, i]*W[0, 3-i]",
    ),
    "one is made of the other": ("V[i:4] = A6[3-i]\nU[i:4] = V[i] + A5[i]\nY[i:4] = U[i]", "Y[i:4] = A5[i] + A6[3-i]"),
    "what vanishes": ("V[i:4] = A6[i]\nY[i:4] = V[i]", "W[i:8] = where(i < 4, A6[i%4], A5[i%4])\nY[i:4] = W[i]"),
}


@pytest.mark.parametrize("name", MEETS)
def test_equation_is_compared_with_its_counterpart_at_another_depth(name: str) -> None:
    before, after = (deep(line, "output Y") for line in MEETS[name])
    assert engine(before, after) and engine(after, before)


def test_outermost_equations_are_inlined_first() -> None:
    program = parse("tensor A[4]\nT[i:4] = A[i]\nU[i:4] = T[i]\nV[i:4] = A[3-i]\nY[i:4] = U[i] + V[i]")
    held = EquationDefinitions(program)
    assert held.made_of("Y") == {"A", "T", "U", "V"} and held.made_of("A") == frozenset()
    assert outermost_names({"T", "U", "V"}, (held, {"T", "U", "V"})) == {"U", "V"}
    assert outermost_names({"T", "U"}, (held, {"T"})) == {"T", "U"}
    turned = EquationDefinitions(parse("tensor A[4]\nU[i:4] = A[i]\nT[i:4] = U[i]\nY[i:4] = T[i]"))
    assert outermost_names({"T", "U"}, (held, {"U"}), (turned, {"T"})) == {"T", "U"}
    assert held.scope("Y", {"U", "V"}) == program.equations[3].scope
    (y,) = parse("tensor A[4]\nY[i:4] = {[i:4] {[i:4] A[i]}[i]}[i] + {[i:4] A[3-i]}[i]").equations
    assert held.scope("Y", frozenset()) == y.scope


POLYNOMIALS = 3
"""So many of the bodies are, the first ones."""


class Stored:
    """The place of a program's results: how an element of each is read.  One read may be wrong."""

    def __init__(self, wrong: int, how: int) -> None:
        self._patterns = {name: f"{name}[{{0}}, {{1}}]" for name in "abc"}
        self._wrong, self._how = wrong, how

    def put(self, name: str, pattern: str) -> None:
        self._patterns[name] = pattern

    def body(self, form: int, args: Sequence[str]) -> str:
        return re.sub(r"\{(.)\}\[(.*?), (.*?)\]", lambda m: self._read(args[int(m[1])], m[2], m[3]), BODIES[form])

    def _read(self, name: str, i: str, j: str) -> str:
        self._wrong -= 1
        if not self._wrong:
            others = sorted(self._patterns)
            name = others[self._how % len(others)] if self._how % 3 else name
            i, j = (i, j) if self._how % 3 == 1 else (j, i)
        return self._patterns[name].format(i, j)


@st.composite
def rebuilt(draw: st.DrawFn, most: int, forms: int) -> tuple[str, str, bool]:
    """A program, and one that computes the same in another way; perhaps with one read gone wrong, which is said."""
    count = draw(st.integers(2, most))
    wrong = draw(st.sampled_from([0, 0, draw(st.integers(1, 3 * count))]))
    plain, stored = Stored(0, 0), Stored(wrong, draw(st.integers(0, 20)))
    before, after = [], []
    names = draw(st.permutations([f"T{n}" for n in range(count)]))
    known = ["a", "b", "c"]
    n = 0
    while n < count:
        two = n + 1 < count and draw(st.booleans())
        form = draw(st.integers(0, forms - 1))
        args = [draw(st.lists(st.sampled_from(known), min_size=2, max_size=2)) for _ in range(1 + two)]
        own = [f"T{n + k}" for k in range(1 + two)]
        before += [f"{t}[i:3, j:3] = {plain.body(form, of)}" for t, of in zip(own, args, strict=True)]
        bodies = [stored.body(form, of) for of in args]
        if two:
            pieces = (
                f"{{[b:1, i:3, j:3] {body}}} pad [({k}, {1 - k}), 0, 0][b-{k}, i, j]" for k, body in enumerate(bodies)
            )
            after.append(f"M{n}[b:2, i:3, j:3] = {' + '.join(pieces)}")
            for k, t in enumerate(own):
                stored.put(t, f"M{n}[{k}, {{0}}, {{1}}]")
        else:
            match draw(st.integers(0, 2)):
                case 0:
                    after.append(f"{names[n]}[i:3, j:3] = {bodies[0]}")
                    stored.put(own[0], f"{names[n]}[{{0}}, {{1}}]")
                case 1:
                    after.append(f"{names[n]}[j:3, i:3] = {bodies[0]}")
                    stored.put(own[0], f"{names[n]}[{{1}}, {{0}}]")
                case _:
                    stored.put(
                        own[0], f"{{{{[i:3, j:3] {bodies[0].replace('{', '{{').replace('}', '}}')}}}}}[{{0}}, {{1}}]"
                    )
        for t in own:
            plain.put(t, f"{t}[{{0}}, {{1}}]")
        known += own
        n += len(own)
    for side, lines in ((plain, before), (stored, after)):
        lines += [f"Y{k}[i:3, j:3] = {side.body(0, (t, 'a'))}" for k, t in enumerate(known[3:])]
        lines.insert(0, "tensor a[3, 3]\ntensor b[3, 3]\ntensor c[3, 3]")
        lines.append("output " + ", ".join(f"Y{k}" for k in range(count)))
    return "\n".join(before), "\n".join(after), bool(wrong)


@given(rebuilt(5, len(BODIES)))
def test_wrongly_rebuilt_programs_are_not_proved(case: tuple[str, str, bool]) -> None:
    before, after, wrong = case
    one, other = parse(before), parse(after)
    if not same(one, other):
        assert wrong and not certify(one, other).ok and not certify(other, one).ok


@given(rebuilt(3, POLYNOMIALS))
def test_polynomials_that_are_rebuilt_are_proved(case: tuple[str, str, bool]) -> None:
    before, after, _ = case
    one, other = parse(before), parse(after)
    expected = "proved" if same(one, other) else "false"
    assert certify(one, other).kind == certify(other, one).kind == expected
