"""The roofline model: free equations, counted work, and valid lower bounds."""

from dataclasses import replace

import pytest
from hypothesis import given

from einnet_explore.cost import CPU_DEFAULT, CostModel, cpu_default, program_seconds, work
from einnet_explore.cost.model import utilisation
from einnet_explore.ir import EOPERATOR, VIEW, EOperatorKind, Equation, Instance, Program
from einnet_explore.operators.library import OPERATORS
from einnet_explore.syntax import parse
from tests.strategies import programs
from tests.test_online_softmax import attention, derived

MATMUL = "tensor A[40, 30]\ntensor B[30, 50] weight\nY[m:40, n:50] = sum[k:30] A[m, k] * B[k, n]"


def equation(text: str, via: str | None = None) -> Equation:
    last = parse(text).equations[-1]
    return replace(last, via=Instance(via) if via else None)


def test_flops_and_bytes_of_a_matrix_product_are_counted() -> None:
    done = work(equation(MATMUL).scope)
    assert (done.flops, done.read_bytes, done.written_bytes) == (2 * 40 * 30 * 50, 4 * (1200 + 1500), 4 * 2000)


def test_a_transposed_convolution_counts_the_windows_only() -> None:
    text = """
    tensor X[1, 8, 8, 5]
    tensor K[4, 4, 3, 5] weight pad [20, 20, 0, 0]
    Y[n:1, y:16, x:16, c:3] = sum[h:8, w:8, f:5] X[n, h, w, f] * K[y+1-2*h, x+1-2*w, c, f]"""
    assert work(equation(text).scope).flops == 2 * (16 * 16 * 3) * (2 * 2 * 5)


def test_utilisation_counts_idle_vector_lanes() -> None:
    conv = """
    tensor A[20, 9] pad [0, 1]
    tensor K[21, 20, 3] weight
    Y[f:21, h:9] = sum[c:20, r:3] A[c, h+r-1] * K[f, c, r]"""
    assert utilisation(equation(conv).scope, 16) == pytest.approx(21 / 32)
    assert utilisation(equation(MATMUL).scope, 16) == pytest.approx(max(40 / 48, 50 / 64))
    assert utilisation(equation("tensor A[3]\nY[i:3] = A[i]").scope, 16) == 1


def test_views_weights_and_measured_times() -> None:
    model = CostModel()
    assert model.estimate(equation("tensor A[6]\nY[i:2, j:3] = A[3*i+j]", VIEW)).seconds == 0
    assert model.estimate(equation("tensor A[6] weight\nY[i:6] = A[i] * 2", EOPERATOR)).how == "constant"
    stored = CostModel(measured=lambda e: 0.5 if e.name == "Y" else None)
    assert stored.estimate(equation(MATMUL)).how == "measured"
    assert stored.estimate(equation(MATMUL)).seconds == 0.5
    assert stored.estimate(replace(equation(MATMUL), name="Z")).how == "flops"


def test_weights_come_from_memory_where_a_model_displaces_them() -> None:
    """Also those computed from weights, as a library reads them; inputs, which were just written, are near."""
    program = parse("""
    tensor A[1, 1000]
    tensor B[2000, 1000] weight
    T[k:1000, n:2000] = B[n, k] * 2
    Y[m:1, n:2000] = sum[k:1000] A[m, k] * T[k, n]""")
    device = replace(CPU_DEFAULT, cache_bytes=1 << 24, cache_bandwidth=8e10, memory_bandwidth=1e10)
    near, far = (CostModel(device, displacing_bytes=n) for n in (1 << 22, 1 << 24))
    weights, rest = 4 * 2_000_000, 4 * 3_000
    assert near.weight_seconds(program) == weights / 8e10 and far.weight_seconds(program) == weights / 1e10
    assert near(program)[0] == pytest.approx(device.call_seconds + (weights + rest) / 8e10)
    assert far(program)[0] == pytest.approx(device.call_seconds + weights / 1e10 + rest / 8e10)
    assert far.lower_bound(program) <= far(program)[0]
    without = replace(program, inputs=tuple(replace(t, weight=False) for t in program.inputs))
    assert far(without) == near(without)


def test_library_operators_are_expected_to_be_faster_than_generated_ones() -> None:
    library, generated = (CostModel().estimate(equation(MATMUL, via)) for via in ("Matmul", EOPERATOR))
    assert library.seconds < generated.seconds
    assert {o.name for o in OPERATORS if o.onnx is None} >= {"G2BMM", "GBMM"}
    assert CostModel().estimate(equation(MATMUL, "GBMM")) == generated


def test_attention_in_one_pass_reaches_the_rate_of_tiles() -> None:
    open_, generated = derived(attention(1, 64, 64, 32, 32)), Instance(EOPERATOR)
    rates = [
        CostModel().estimate(Equation("Y", open_, via)).seconds for via in (generated, EOperatorKind.ONE_PASS.instance)
    ]
    assert rates[1] < rates[0] / 3


def test_an_eoperator_costs_its_bytes() -> None:
    found = CostModel().estimate(equation("tensor A[1000, 1000]\nY[i:1000, j:1000] = A[j, i]", EOPERATOR))
    assert found.how == "bytes"
    nbytes = 8 * 1000 * 1000
    assert found.seconds == pytest.approx(CPU_DEFAULT.call_seconds + nbytes / CPU_DEFAULT.bandwidth(nbytes))
    slow = replace(cpu_default(2), cache_bytes=10)
    assert slow.bandwidth(11) == slow.memory_bandwidth < slow.bandwidth(10) == slow.cache_bandwidth


def test_weights_fold_through_equations() -> None:
    folded = parse("""
    tensor A[4]
    tensor B[4] weight
    C[i:4] = B[i] * 2
    D[i:4] = C[i] + 1
    Y[i:4] = A[i] * D[i]""")
    last = replace(folded, equations=folded.equations[-1:])
    assert CostModel().program_cost(folded).seconds == CostModel().program_cost(last).seconds
    assert program_seconds(folded) == (CostModel().program_cost(folded).seconds, "bytes")


@given(programs())
def test_the_lower_bound_is_below_the_cost(drawn: Program) -> None:
    model = CostModel()
    assert 0 <= model.lower_bound(drawn) <= model.program_cost(drawn).seconds
    done = replace(drawn, equations=tuple(replace(e, via=Instance(EOPERATOR)) for e in drawn.equations))
    assert model.lower_bound(drawn) <= model.lower_bound(done) == pytest.approx(model.program_cost(done).seconds)
