"""Canonical keys: alpha-equal scopes have equal keys, and no others do."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from einnet_explore.analysis.canonical_keys import COMMUTATIVE, canonical_key, program_key
from einnet_explore.analysis.indices import with_iterators
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Instance,
    Iterator,
    Program,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    program,
)
from tests.strategies import inputs_for, programs, scopes_


def x(name: str, hi: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, hi)


def shuffled(scope: Scope, rng: random.Random, tensors: dict[str, str] | None = None) -> Scope:
    """An alpha-equal scope: iterators renamed, summations, operands and bounds in another order, at every depth."""

    def body(at: Scalar) -> Scalar:
        match at:
            case Access(Scope() as source, index):
                return Access(shuffled(source, rng, tensors), index)
            case Access(Tensor() as source, index):
                return Access(replace(source, name=(tensors or {}).get(source.name, source.name)), index)
            case Apply(op, args):
                new = [body(a) for a in args]
                if op in COMMUTATIVE:
                    rng.shuffle(new)
                return Apply(op, tuple(new))
            case Compare(op, left, right) if rng.random() < 0.5:
                turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
                return Compare(turned.get(op, op), right, left)
        return at

    own = (*scope.traversals, *scope.summations)
    names = rng.sample([a + b for a in "abmpxz" for b in ("", "0", "1", "q")], len(own))
    scope = with_iterators(scope, {y: Iterator(name, y.lo, y.hi) for y, name in zip(own, names, strict=True)})
    return replace(
        scope,
        summations=tuple(rng.sample(scope.summations, len(scope.summations))),
        domain=tuple(rng.sample(scope.domain, len(scope.domain))),
        body=body(scope.body),
    )


@given(scopes_(), st.randoms(use_true_random=False))
def test_alpha_equal_scopes_have_one_key(scope: Scope, rng: random.Random) -> None:
    other = shuffled(scope, rng)
    assert canonical_key(other) == canonical_key(scope)
    assert hash(canonical_key(other)) == hash(canonical_key(scope))


@given(programs(), st.randoms(use_true_random=False))
def test_alpha_equal_programs_have_one_key(drawn: Program, rng: random.Random) -> None:
    made = [e.name for e in drawn.equations]
    names = dict(zip(made, rng.sample([f"T{n}" for n in range(9)], len(made)), strict=True))
    equations = [Equation(names[e.name], shuffled(e.scope, rng, names), e.via) for e in drawn.equations]
    rng.shuffle(equations)
    inputs = tuple(rng.sample(drawn.inputs, len(drawn.inputs)))
    other = Program(inputs, tuple(equations), tuple(names[o] for o in drawn.outputs))
    assert program_key(other) == program_key(drawn)


@given(scopes_(), st.integers(1, 3), st.data())
def test_different_values_have_different_keys(scope: Scope, changes: int, data: st.DataObject) -> None:
    other = scope
    for _ in range(changes):
        other = data.draw(st.sampled_from(MUTATIONS))(other)
    inputs = inputs_for(scope)
    a, b = evaluate(scope, inputs), evaluate(other, inputs)
    assume(a.shape != b.shape or not np.array_equal(a, b))
    assert canonical_key(other) != canonical_key(scope)


@given(st.lists(scopes_(depth=1), min_size=2, max_size=2))
def test_equal_keys_mean_equal_values(pair: list[Scope]) -> None:
    one, two = pair
    inputs = {**inputs_for(one), **inputs_for(two)}
    try:
        differ = not np.array_equal(evaluate(one, inputs), evaluate(two, inputs))
    except ValueError:  # one tensor name, two shapes
        differ = True
    if differ:
        assert canonical_key(one) != canonical_key(two)


def _scaled(scope: Scope) -> Scope:
    return replace(scope, body=mul(Const(2), scope.body))


def _negated(scope: Scope) -> Scope:
    return replace(scope, body=Apply("neg", (scope.body,)))


def _wider(scope: Scope) -> Scope:
    return replace(scope, summations=(*scope.summations, Iterator("u9", 0, 2)))


def _reversed(scope: Scope) -> Scope:
    return replace(scope, traversals=scope.traversals[::-1])


def _valued(scope: Scope) -> Scope:
    return replace(scope, value=scope.value + 1)


def _squared(scope: Scope) -> Scope:
    return replace(scope, body=mul(scope.body, scope.body))


MUTATIONS: list[Callable[[Scope], Scope]] = [_scaled, _negated, _wider, _reversed, _valued, _squared]

A4 = Tensor("A", (4, 4))
K4 = Tensor("K", (4, 4))
r, s, i, j = x("r", 4), x("s", 4), x("i", 4), x("j", 4)
ring = tuple(x(f"y{n}", 4) for n in range(6))

DIFFERENT = {
    "transposed operand": (
        Scope((), (r, s), mul(A4[r, s], K4[r, s])),
        Scope((), (r, s), mul(A4[r, s], K4[s, r])),
    ),
    "modulus": (Scope((i,), (), A4[i % 3, i % 3]), Scope((i,), (), A4[i % 3, i % 2])),
    "divisor": (Scope((i,), (), A4[i // 3, 0]), Scope((i,), (), A4[i // 2, 0])),
    "padding": (Scope((i,), (), A4[i, 0]), Scope((i,), (), A4[i, 0], padding=((2, 2),))),
    "padding of a tensor": (Scope((i,), (), A4[i, 0]), Scope((i,), (), replace(A4, padding=((2, 2), (0, 0)))[i, 0])),
    "padding of a nested scope": (
        Scope((i,), (), Scope((j,), (), A4[j, 0])[(i,)]),
        Scope((i,), (), Scope((j,), (), A4[j, 0], padding=((0, 1),))[(i,)]),
    ),
    "value": (Scope((i,), (), A4[i, 0], value=1), Scope((i,), (), A4[i, 0], value=0)),
    "traversal order": (Scope((i, j), (), A4[i, j]), Scope((j, i), (), A4[i, j])),
    "range": (Scope((i,), (), A4[i, 0]), Scope((x("i", 3),), (), A4[x("i", 3), 0])),
    "origin of a range": (Scope((i,), (), Const(1)), Scope((x("i", 5, 1),), (), Const(1))),
    "reduction": (Scope((), (i,), A4[i, 0]), Scope((), (i,), A4[i, 0], "max")),
    "domain": (Scope((i,), (), A4[i, 0]), Scope((i,), (), A4[i, 0], domain=(Bound(as_index(i), 0, 3),))),
    "coefficient": (Scope((x("i", 2),), (), A4[x("i", 2), 0]), Scope((x("i", 2),), (), A4[2 * x("i", 2), 0])),
    "tensor": (Scope((i,), (), A4[i, 0]), Scope((i,), (), K4[i, 0])),
    "weight": (Scope((i,), (), A4[i, 0]), Scope((i,), (), replace(A4, weight=True)[i, 0])),
    "unused summation": (Scope((), (r,), A4[r, 0]), Scope((), (r, s), A4[r, 0])),
    "operands of a difference": (
        Scope((), (), Apply("-", (A4[0, 0], K4[0, 0]))),
        Scope((), (), Apply("-", (K4[0, 0], A4[0, 0]))),
    ),
    "comparison": (
        Scope((i,), (), Apply("where", (Compare("<", as_index(i), as_index(2)), A4[i, 0], Const(0)))),
        Scope((i,), (), Apply("where", (Compare("<=", as_index(i), as_index(2)), A4[i, 0], Const(0)))),
    ),
    "cycles of 6 and of twice 3": (
        Scope((), ring, mul(*(A4[ring[n], ring[(n + 1) % 6]] for n in range(6)))),
        Scope((), ring, mul(*(A4[ring[3 * g + n], ring[3 * g + (n + 1) % 3]] for g in (0, 1) for n in range(3)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_programs_have_different_keys(what: str) -> None:
    one, two = DIFFERENT[what]
    assert canonical_key(one) != canonical_key(two)
    assert canonical_key(one) == canonical_key(shuffled(one, random.Random(1)))
    assert canonical_key(two) == canonical_key(shuffled(two, random.Random(2)))


six = tuple(x(f"y{n}", 2) for n in range(6))
SYMMETRIC = {
    "one access": Tensor("B", (2,) * 6)[six],
    "six vectors": mul(*(Tensor("C", (2,))[(y,)] for y in six)),
    "six different vectors": mul(*(Tensor(f"C{n}", (2,))[(y,)] for n, y in enumerate(six))),
    "a cycle": mul(*(Tensor("D", (2, 2))[six[n], six[(n + 1) % 6]] for n in range(6))),
    "an undirected cycle": mul(*(Tensor("D", (12,))[(six[n] + 3 * six[(n + 1) % 6],)] for n in range(6))),
    "a prism": mul(
        *(Tensor("D", (3,))[(six[a] + six[b],)] for a, b in [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]),
        *(Tensor("E", (3,))[(six[n] + six[n + 3],)] for n in range(3)),
    ),
    "all pairs": mul(*(Tensor("D", (2, 2))[a, b] for a, b in itertools.permutations(six, 2))),
    "a sum of all": Tensor("E", (7,))[(sum(six[1:], as_index(six[0])),)],
    "none": Const(3),
}


@pytest.mark.parametrize("what", SYMMETRIC)
def test_six_equal_summations(what: str) -> None:
    scope = Scope((), six, SYMMETRIC[what])
    assert len({canonical_key(shuffled(scope, random.Random(seed))) for seed in range(12)}) == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), st.randoms())
def test_keys_are_equal_exactly_for_isomorphic_graphs(edges: list[tuple[int, int]], rng: random.Random) -> None:
    """Products of accesses are directed graphs: keys are equal exactly for isomorphic ones."""

    def scope(of: list[tuple[int, int]]) -> Scope:
        return Scope((), five, mul(Const(1), *(A4[five[a], five[b]] for a, b in of)))

    def canonical(of: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return min(sorted((p[a], p[b]) for a, b in of) for p in itertools.permutations(range(5)))

    five = tuple(x(f"y{n}", 4) for n in range(5))
    other = list(edges)
    n = rng.randrange(len(edges))
    other[n] = (rng.randrange(5), other[n][1])
    assert (canonical_key(scope(edges)) == canonical_key(scope(other))) == (canonical(edges) == canonical(other))


def _chain(read: str) -> Program:
    first = Equation("T", Scope((i, j), (), mul(Const(2), A4[i, j])))
    second = Equation("U", Scope((i, j), (), add(Const(2), A4[i, j])))
    source = {"T": first, "U": second}[read].tensor
    return Program((A4,), (first, second, Equation("Y", Scope((i,), (j,), source[i, j]))), ("Y",))


def test_programs_that_differ() -> None:
    assert program_key(_chain("T")) != program_key(_chain("U"))
    one = _chain("T")
    assert program_key(one) != program_key(replace(one, outputs=("Y", "T")))
    assert program_key(one) != program_key(replace(one, outputs=("T",)))
    last = replace(one.equations[2], via=Instance("Matmul", (("m", 4),)))
    called = replace(one, equations=(*one.equations[:2], last))
    assert program_key(called) != program_key(one)
    other = replace(last, via=Instance("Matmul", (("m", 5),)))
    assert program_key(called) != program_key(replace(one, equations=(*one.equations[:2], other)))


def test_copies_are_distinguished_by_their_readers() -> None:
    copies = [Equation(name, Scope((i, j), (), mul(Const(2), A4[i, j]))) for name in "TUV"]

    def reading(*names: str) -> Program:
        sources = [next(e for e in copies if e.name == n).tensor for n in names]
        body = add(*(t[i, n] for n, t in enumerate(sources)))
        return Program((A4,), (*copies, Equation("Y", Scope((i,), (), body))), ("Y",))

    assert program_key(reading("T", "U")) == program_key(reading("V", "T"))
    assert program_key(reading("T", "U")) != program_key(reading("T", "T"))


def _woven(edges: list[tuple[int, int]], rng: random.Random) -> Program:
    """Five copies, and for every edge (a, b) one equation that reads copy *a* and copy *b*, in any order and names."""
    names = rng.sample([f"T{n}" for n in range(30)], 5 + len(edges))
    copies = [Equation(names[n], Scope((i, j), (), mul(Const(2), A4[i, j]))) for n in range(5)]
    made = [
        Equation(name, Scope((i,), (), add(copies[a].tensor[i, 0], copies[b].tensor[i, 1])))
        for name, (a, b) in zip(names[5:], edges, strict=True)
    ]
    return Program((A4,), tuple(rng.sample([*copies, *made], len(names))), ())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), st.randoms())
def test_copies_that_weave_a_graph(edges: list[tuple[int, int]], rng: random.Random) -> None:
    """Keys are equal exactly for isomorphic graphs of reads."""

    def canonical(of: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return min(sorted((p[a], p[b]) for a, b in of) for p in itertools.permutations(range(5)))

    other = list(edges)
    n = rng.randrange(len(edges))
    other[n] = (rng.randrange(5), other[n][1])
    one, two = _woven(edges, rng), _woven(other, rng)
    assert (program_key(one) == program_key(two)) == (canonical(edges) == canonical(other))


def test_twelve_copies_are_not_tried_in_every_order() -> None:
    """12! orders: copies with readers of their own, copies whose readers are copies, copies that nothing reads."""

    def key_of(seed: int, reader: Callable[[int, Tensor], Scope]) -> object:
        rng = random.Random(seed)
        copies = [Equation(f"T{n}", Scope((i, j), (), mul(Const(2), A4[i, j]))) for n in rng.sample(range(12), 12)]
        made = [Equation(f"U{n}", reader(n, e.tensor)) for n, e in enumerate(copies)]
        return program_key(Program((A4,), tuple(rng.sample([*copies, *made], 24)), ("U3", "U7")))

    readers: list[Callable[[int, Tensor], Scope]] = [
        lambda n, t: Scope((i,), (), mul(Const(n), t[i, 0])),
        lambda n, t: Scope((i,), (), t[i, 0]),
        lambda n, t: Scope((i,), (), A4[i, 0]),
    ]
    keys = [key_of(1, reader) for reader in readers]
    assert len(set(keys)) == len(keys)
    assert keys == [key_of(2, reader) for reader in readers]


def test_a_circle_of_equations_is_refused() -> None:
    one = Equation("T", Scope((i,), (), Tensor("U", (4,))[(i,)]))
    two = Equation("U", Scope((i,), (), Tensor("T", (4,))[(i,)]))
    with pytest.raises(ValueError, match="equations T, U read one another in a circle"):
        program_key(Program((), (one, two), ("U",)))


def test_one_equation_is_keyed_by_its_scope() -> None:
    one, two = (program(Scope((), (r, s), mul(A4[r, s], K4[r, s])), name) for name in ("Y", "Z"))
    assert program_key(one) == program_key(two)
