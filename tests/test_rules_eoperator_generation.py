"""eOperators: memory-bound scopes are generated, strided copies are views, compute-bound scopes are refused."""

import pytest
from hypothesis import given

from einnet_explore.analysis.counts import compute_bound, intensity, is_compute_bound
from einnet_explore.analysis.flattening import flat_address, row_major_strides, view_strides
from einnet_explore.ir import EOPERATOR, VIEW, EOperatorKind, Instance, Program, accesses
from einnet_explore.rules import EOPERATOR_GENERATION
from einnet_explore.syntax import parse
from tests.rules_kit import assert_equal, check_rule, refuses
from tests.strategies import programs


@given(programs(equations=3))
def test_generation_keeps_the_value(start: Program) -> None:
    check_rule(EOPERATOR_GENERATION, start)


def via(text: str, equation: int = 0) -> Instance | None:
    start = parse(text)
    return EOPERATOR_GENERATION.match(start, (equation,)).apply(start).after.equations[equation].via


@pytest.mark.parametrize(
    ("equation", "kind"),
    [
        ("Y[x:4, y:3] = A[y, x]", "layout"),
        ("Y[x:4, y:3] = A[y, x] * 2", "elementwise"),
        ("Y[x:4] = max[y:3] A[y, x]", "reduction"),
        ("Y[x:4, y:3] = {[z:3, w:4] A[z, w]}[y, x]", "layout"),
    ],
)
def test_generated_kernel_has_the_kind_of_its_body(equation: str, kind: str) -> None:
    assert via(f"tensor A[3, 4]\n{equation}") == Instance(EOPERATOR, (("kind", kind),))


@pytest.mark.parametrize(
    ("equation", "offset", "strides"),
    [
        ("T[x:4, y:3] = A[y, x]", 0, (1, 4)),
        ("T[y:2, x:2] = A[y+1, 2*x+1]", 5, (4, 2)),
        ("T[i:12] = A[i//4, i%4]", 0, (1,)),
        ("T[y:3, x:4] = A[2-y, x]", 8, (-4, 1)),
        ("T[y:3, x:4, k:2] = A[y, x]", 0, (4, 1, 0)),
        ("T[y:1..3, x:4] = A[y, x]", 4, (4, 1)),
    ],
)
def test_strided_re_indexings_become_views(equation: str, offset: int, strides: tuple[int, ...]) -> None:
    head = equation.split("[", maxsplit=1)[1].split("]", maxsplit=1)[0]
    names = ", ".join(part.split(":")[0] for part in head.split(","))
    text = f"tensor A[3, 4]\n{equation}\nY[{head}] = T[{names}] + 1"
    assert via(text) == Instance(VIEW, (("offset", offset), ("strides", strides)))


def test_an_output_is_a_view_only_in_row_major_order() -> None:
    assert via("tensor A[3, 4]\nY[i:12] = A[i//4, i%4]") == Instance(VIEW, (("offset", 0), ("strides", (1,))))
    assert via("tensor A[3, 4]\nY[x:4, y:3] = A[y, x]") == Instance(EOPERATOR, (("kind", "layout"),))


def test_reads_of_padding_and_broken_addresses_are_no_views() -> None:
    for text in ("Y[y:5] = A[y-1]", "Y[y:3] = A[y*2 % 3]", "Y[y:3] = A[y] + 0 * A[0]", "Y[y:1] = sum[k:3] A[k]"):
        assert view_strides(parse(f"tensor A[3] pad [1]\n{text}").scope_at((0,))) is None


def test_flat_addresses_and_strides_are_row_major() -> None:
    scope = parse("tensor M[16, 16]\nY[i:8] = sum[j:8] M[i, i+j]").scope_at((0,))
    (access,) = accesses(scope.body)
    assert repr(flat_address(access)) == "17*i+j"
    assert row_major_strides((2, 3, 4)) == (12, 4, 1) and row_major_strides(()) == ()


def test_a_nested_scope_is_taken_out_by_hand() -> None:
    start = parse("tensor A[3, 4]\ntensor T1[2]\nY[x:4] = {[z:4] sum[k:3] A[k, z]} pad [1] [x] * T1[0]")
    assert list(EOPERATOR_GENERATION.matches(start, (0, 0))) == []
    after = EOPERATOR_GENERATION.match(start, (0, 0)).apply(start).after
    assert [(e.name, e.via and e.via.operator) for e in after.equations] == [("T2", EOPERATOR), ("Y", None)]
    assert_equal(start, after)


def test_compute_bound_and_repeated_scopes_are_refused() -> None:
    product = parse("tensor A[64, 64]\ntensor B[64, 64]\nY[m:64, n:64] = sum[k:64] A[m, k] * B[k, n]")
    message = "intensity 42.7 FLOP/element is not below 4: this is compute-bound"
    refuses(EOPERATOR_GENERATION, product, (0,), message)
    assert list(EOPERATOR_GENERATION.matches(product, (0,))) == []
    read = parse("tensor A[64, 64]\ntensor B[64, 64]\nY[m:64, n:64] = {[i:64, j:64] sum[k:64] A[i, k] * B[k, j]}[m, n]")
    refuses(EOPERATOR_GENERATION, read, (0,), message)
    nested = parse("tensor A[4]\nY[x:4] = {[z:4] sum[k:4, q:4] A[k] * A[q]}[x // 2]")
    repeated = "the scope at 0.0 sums over k, q for every read of it: instantiate it first"
    refuses(EOPERATOR_GENERATION, nested, (0,), repeated)
    refuses(EOPERATOR_GENERATION, nested, (0,), "eoperator_generation takes no parameters, found kind", kind="layout")
    copy = parse("tensor A[4]\nY[x:4] = A[x] + 1")
    done = EOPERATOR_GENERATION.match(copy, (0,)).apply(copy).after
    refuses(EOPERATOR_GENERATION, done, (0,), "Y is instantiated already, by eOperator")


def test_a_formula_without_a_sum_is_generated_at_any_intensity() -> None:
    formula = parse("tensor A[64]\nY[x:64] = " + " + ".join(f"tanh({n} * A[x])" for n in range(2, 12)))
    assert intensity(formula.scope_at((0,))) > 4 and not is_compute_bound(formula.scope_at((0,)))
    after = EOPERATOR_GENERATION.match(formula, (0,)).apply(formula).after
    assert after.equations[0].via == EOperatorKind.ELEMENTWISE.instance and compute_bound(formula) == ()
    counts = parse("Y[i:6] = sum[r:3] where(2*i+r >= 1, where(2*i+r <= 12, 1, 0), 0)")  # it reads nothing
    assert list(EOPERATOR_GENERATION.matches(counts, (0,))) and compute_bound(counts) == ()


def test_an_epilogue_of_a_sum_is_one_kernel() -> None:
    sums = parse("tensor A[3, 4]\nY[x:4, y:1] = relu({[z:4] sum[k:3] A[k, z]}[x])")
    after = EOPERATOR_GENERATION.match(sums, (0,)).apply(sums).after
    assert after.equations[0].via is not None and after.equations[0].via.operator == EOPERATOR


def test_operand_of_a_library_call_is_no_view_unless_it_is_packed() -> None:
    head = "tensor X[512, 64]\ntensor Z[512, 64]\n"
    call = "T[m:64, n:64] = sum[k:512] Z[k, m] * Y[n, k] via Matmul(b=1, m=64, n=64, k=512, ta=1, tb=1)"
    program = parse(f"{head}Y[i:64, j:512] = X[j, i]\n{call}")
    after = EOPERATOR_GENERATION.rewrite(program, (0,), None)
    assert after.equations[0].via == EOperatorKind.LAYOUT.instance
    free = parse(f"{head}Y[i:64, j:512] = X[j, i]\nT[m:64, n:64] = sum[k:512] Z[k, m] * Y[n, k]")
    assert EOPERATOR_GENERATION.rewrite(free, (0,), None).equations[0].via.operator == VIEW
    packed = parse(f"{head.replace('X[512, 64]', 'X[64, 512]')}Y[i:64, j:512] = X[i, j]\n{call}")
    assert EOPERATOR_GENERATION.rewrite(packed, (0,), None).equations[0].via.operator == VIEW
