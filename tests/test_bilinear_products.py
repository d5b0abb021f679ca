"""Known algorithms of small products: their identities, composition, and the rule that puts them into expressions."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from einnet_explore.analysis.bilinear import (
    Bilinear,
    Form,
    Sizes,
    check_bilinear,
    gauss,
    karatsuba,
    laderman,
    matrix_product_form,
    nest_algorithms,
    strassen,
)
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import BILINEAR_PRODUCT, Derivation
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse
from tests.rules_kit import assert_equal, check_rule, refuses


def multiplies_polynomials(k: int, i: int, j: int) -> int:
    """The form of a product of polynomials: the coefficients i and j meet in i + j."""
    return int(k == i + j)


def multiplies_complex(k: int, i: int, j: int) -> int:
    """The form of a product of complex numbers, real parts first."""
    return (1 - 2 * i * j) * int(k == (i + j) % 2)


def nested_form(outer: Form, inner: Form, shape: Sizes) -> Form:
    """The form of ``nested``, where the inner algorithm's *shape* is that of its outputs, data and filter."""
    k0, i0, j0 = shape
    return lambda k, i, j: outer(k // k0, i // i0, j // j0) * inner(k % k0, i % i0, j % j0)


TWO, THREE = (2, 2, 2), (3, 3, 3)
ALGORITHMS: list[tuple[Bilinear, Form, int]] = [
    (strassen(), matrix_product_form(TWO), 7),
    (laderman(), matrix_product_form(THREE), 23),
    (karatsuba(), multiplies_polynomials, 3),
    (gauss(), multiplies_complex, 3),
    (
        nest_algorithms(karatsuba(), karatsuba()),
        nested_form(multiplies_polynomials, multiplies_polynomials, (3, 2, 2)),
        9,
    ),
    (
        nest_algorithms(strassen(), strassen()),
        nested_form(matrix_product_form(TWO), matrix_product_form(TWO), (4, 4, 4)),
        49,
    ),
]
MATMUL = "tensor A[{m}, {k}]\ntensor B[{k}, {n}]\nY[m:{m}, n:{n}] = sum[k:{k}] A[m, k] * B[k, n]"


def table(form: Form, shape: Sizes) -> str:
    values = ", ".join(str(form(k, i, j)) for k, i, j in product(*map(range, shape)))
    return f"table[{shape[0]}, {shape[1]}, {shape[2]}] ({values})"


def of_table(form: Form, shape: Sizes, batch: int = 2) -> Program:
    k, i, j = shape
    return parse(f"""
        tensor A[{batch}, {i}, 2]
        tensor B[{j}, 2, 3]
        Y[b:{batch}, k:{k}, f:3] = sum[i:{i}, j:{j}, c:2] {table(form, shape)}[k, i, j] * A[b, i, c] * B[j, c, f]""")


@pytest.mark.parametrize(("triple", "form", "rank"), ALGORITHMS)
def test_bilinear_identity_holds_for_known_algorithms(triple: Bilinear, form: Form, rank: int) -> None:
    assert triple.rank == rank
    check_bilinear(triple, form)


@pytest.mark.parametrize(("triple", "form"), [case[:2] for case in ALGORITHMS[:4]])
def test_any_single_entry_changed_is_found(triple: Bilinear, form: Form) -> None:
    for side in "uvw":
        table = getattr(triple, side)
        for n, (y, x) in enumerate(product(range(len(table)), range(len(table[0])))):
            rows = [list(row) for row in table]
            rows[y][x] += (Fraction(1), Fraction(-1, 2), Fraction(7))[n % 3]
            changed: dict[str, Any] = {side: tuple(map(tuple, rows))}
            wrong = replace(triple, **changed)
            with pytest.raises(Refused) as refused:
                check_bilinear(wrong, form)
            found = re.search(
                r" is (\S+) at \(k, i, j\) = \((\d+), (\d+), (\d+)\), expected (-?\d)$", str(refused.value)
            )
            assert found
            k, i, j = map(int, found.groups()[1:4])
            value = sum(wrong.w[k][p] * wrong.u[p][i] * wrong.v[p][j] for p in range(wrong.rank))
            assert (str(value), str(form(k, i, j))) == (found[1], found[5]) and value != form(k, i, j)


@pytest.mark.parametrize(("name", "sizes"), [("Strassen", (4, 6, 8)), ("Laderman", (6, 3, 3))])
def test_a_matrix_product_by_blocks(name: str, sizes: Sizes) -> None:
    m, k, n = sizes
    before = parse(MATMUL.format(m=m, k=k, n=n))
    match = BILINEAR_PRODUCT.match(before, (0,), algorithm=name, rows="m", between="k", columns="n")
    (step,) = Derivation(before).then(match).steps
    assert_equal(before, step.after)
    assert certify(before, step.after).kind == "proved"
    x, filters, middle, _ = step.after.equations
    assert middle.scope.shape[0] == x.scope.shape[0] == filters.scope.shape[0] == {"Strassen": 7, "Laderman": 23}[name]
    assert check_rule(BILINEAR_PRODUCT, before) >= 1


def test_blocks_of_batches_scaled_and_transposed() -> None:
    before = parse("""
        tensor A[3, 4, 2, 5]
        tensor B[3, 6, 4]
        Y[n:6, b:3, m:2] = sum[k:4, c:5] 2 * A[b, k, m, c] * B[b, n, k]""")
    match = BILINEAR_PRODUCT.match(before, (0,), algorithm="Strassen", rows="m", between="k", columns="n")
    after = match.apply(before).after
    assert_equal(before, after)
    assert certify(before, after).kind == "proved"


def test_strassen_applies_twice() -> None:
    before = parse(MATMUL.format(m=4, k=4, n=4))
    one = (
        BILINEAR_PRODUCT.match(before, (0,), algorithm="Strassen", rows="m", between="k", columns="n")
        .apply(before)
        .after
    )
    two = BILINEAR_PRODUCT.match(one, (2,), algorithm="Strassen", rows="m", between="k", columns="n").apply(one).after
    assert_equal(before, two)
    assert certify(one, two).kind == "proved"
    assert [e.scope.shape[0] for e in two.equations if len(e.scope.shape) == 4] == [7] * 3


@pytest.mark.parametrize(
    ("triple", "form"),
    [(karatsuba(), multiplies_polynomials), (gauss(), multiplies_complex), (strassen(), matrix_product_form(TWO))],
)
def test_a_form_that_is_written_as_a_table(triple: Bilinear, form: Form) -> None:
    before = of_table(form, triple.shape)
    (match,) = BILINEAR_PRODUCT.matches(before, (0,))
    assert BILINEAR_PRODUCT.encode(match.params) == {"algorithm": triple.name}
    after = match.apply(before).after
    assert_equal(before, after)
    assert certify(before, after).kind == "proved" and check_rule(BILINEAR_PRODUCT, before) == 1


def test_user_algorithm_is_applied_and_survives_json() -> None:
    deeper = nest_algorithms(karatsuba(), karatsuba())
    form = nested_form(multiplies_polynomials, multiplies_polynomials, (3, 2, 2))
    before = of_table(form, deeper.shape, 1)
    shown = {n: [[str(x) for x in row] for row in getattr(deeper, n)] for n in "uvw"}
    match = BILINEAR_PRODUCT.match(before, (0,), algorithm="mine", **shown)
    assert_equal(before, match.apply(before).after)
    assert BILINEAR_PRODUCT.match(before, (0,), **BILINEAR_PRODUCT.encode(match.params)) == match
    plain = parse(MATMUL.format(m=4, k=4, n=8))
    given = {n: [[str(x) for x in row] for row in getattr(strassen(), n)] for n in "uvw"}
    blocks = BILINEAR_PRODUCT.match(
        plain, (0,), algorithm="mine", rows="m", between="k", columns="n", sizes=[2, 2, 2], **given
    )
    assert_equal(plain, blocks.apply(plain).after)
    assert BILINEAR_PRODUCT.match(plain, (0,), **BILINEAR_PRODUCT.encode(blocks.params)) == blocks


BLOCKS = {"algorithm": "Strassen", "rows": "m", "between": "k", "columns": "n"}
PLAIN = MATMUL.format(m=4, k=4, n=4)


@pytest.mark.parametrize(
    ("text", "params", "why"),
    [
        (MATMUL.format(m=5, k=4, n=4), BLOCKS, "m ∈ [0, 5) cannot be cut into 2 equal blocks from 0"),
        (PLAIN.replace("sum", "max"), BLOCKS, "takes the max, expected a plain sum"),
        (PLAIN, BLOCKS | {"columns": "m"}, "expected a traversal, a summation and another traversal"),
        (PLAIN, BLOCKS | {"between": "n"}, "no iterator is called 'n' here"),
        (PLAIN, BLOCKS | {"algorithm": "Winograd"}, "algorithm 'Winograd': expected one of Strassen, Laderman"),
        (
            PLAIN,
            BLOCKS | {"sizes": [3, 3, 3]},
            "Strassen is for (outputs, data, filter) = (4, 4, 4), expected (9, 9, 9)",
        ),
        (PLAIN.replace("A[m, k]", "A[m, 0]"), BLOCKS, "k is not summed between"),
        (PLAIN + " * B[k, n]", BLOCKS, "m occurs in 1 and n in 2 of 3 factors, expected each in one of two factors"),
        (PLAIN, {"algorithm": "Karatsuba"}, "0 factors are tables, expected one of three iterators"),
    ],
)
def test_bilinear_product_refuses_wrong_parameters(text: str, params: dict[str, Any], why: str) -> None:
    refuses(BILINEAR_PRODUCT, parse(text), (0,), why, **params)


def test_a_wrong_algorithm_is_refused_with_the_entry() -> None:
    wrong = {n: [[str(x) for x in row] for row in getattr(strassen(), n)] for n in "uvw"}
    wrong["u"][0][0] = "2"
    refuses(BILINEAR_PRODUCT, parse(PLAIN), (0,), "mine is 2 at (k, i, j) = (0, 0, 0), expected 1",
            **(BLOCKS | {"algorithm": "mine", "sizes": [2, 2, 2]} | wrong))  # fmt: skip
    before = of_table(multiplies_polynomials, (3, 2, 2))
    refuses(
        BILINEAR_PRODUCT,
        before,
        (0,),
        "is for (outputs, data, filter) = (2, 2, 2), expected (3, 2, 2)",
        algorithm="Gauss",
    )
    turned = of_table(lambda k, i, j: int(k == 2 - i - j), (3, 2, 2))
    refuses(
        BILINEAR_PRODUCT, turned, (0,), "Karatsuba is 1 at (k, i, j) = (0, 0, 0), expected 0", algorithm="Karatsuba"
    )
    assert BILINEAR_PRODUCT.explain is not None
    assert "Karatsuba is 1 at" in BILINEAR_PRODUCT.explain(turned, (0,))
    assert "cannot be cut" not in BILINEAR_PRODUCT.explain(turned, (0,)) and not list(
        BILINEAR_PRODUCT.propose(turned, (0,))
    )


def test_strassen_multiplies_numbers() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (2, 2, 2))
    triple = strassen()
    u, v, w = (np.array(x, float) for x in (triple.u, triple.v, triple.w))
    np.testing.assert_array_equal(w @ ((u @ a.ravel()) * (v @ b.ravel())), (a @ b).ravel())
