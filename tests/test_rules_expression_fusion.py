"""Expression fusion: an intermediate in its reader, also where one of them is an activation."""

import pytest

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import EOPERATOR_GENERATION, EXPRESSION_FUSION
from einnet_explore.syntax import parse, text
from tests.rules_kit import Steps, assert_equal, check_rule, refuses

ACTIVATED = parse("""
    tensor A[6, 3] pad [1, 0]
    tensor K[3, 4, 3] weight
    tensor J[3, 2, 4] weight
    tensor b[4] weight
    Y[h:6, f:4] = sum[c:3, r:3] A[h+r-1, c] * K[r, f, c]
    R[h:6, f:4] = relu(Y[h, f] + b[f]) pad [1, 0]
    Z[h:6, g:2] = sum[f:4, r:3] R[h+r-1, f] * J[r, g, f]
    W[h:6, g:2] = abs(Z[h, g])
""")


def fuse(program: Program, at: int, tensor: str) -> Program:
    after = EXPRESSION_FUSION.match(program, (at,), tensor=tensor).apply(program).after
    assert certify(program, after).kind == "proved"
    assert parse(text(after)) == after
    assert_equal(program, after)
    return after


def test_a_convolution_into_its_activation_and_on() -> None:
    """Convolution, bias and ReLU, a second convolution that reads the padding, another activation: one expression."""
    once = fuse(ACTIVATED, 1, "Y")
    twice = fuse(once, 1, "R")
    (whole,) = fuse(twice, 1, "Z").equations
    assert whole.name == "W"
    assert certify(ACTIVATED, fuse(twice, 1, "Z")).kind == "proved"


def test_every_proposed_fusion_keeps_the_value() -> None:
    assert check_rule(EXPRESSION_FUSION, ACTIVATED) == 3
    assert [m.to_json()["params"] for m in EXPRESSION_FUSION.matches(ACTIVATED, (2,))] == [{"tensor": "R"}]


def test_the_sum_of_a_split_convolution_and_its_relu_are_one_kernel() -> None:
    """Fig. 3: OffsetReduce and ReLU."""
    program = parse("""
        tensor T[3, 4, 6] pad [0, 0, 1]
        Y[f:4, h:6] = sum[r:3] T[r, f, h+r-1]
        R[f:4, h:6] = relu(Y[f, h])
    """)
    steps = Steps(program).find(EXPRESSION_FUSION, (1,), tensor="Y").do(EOPERATOR_GENERATION, (0,))
    assert [e.name for e in steps.end.equations] == ["R"]


@pytest.mark.parametrize(
    ("at", "tensor", "message"),
    [
        (1, "K", "K is no equation of this program"),
        (3, "R", "R is read by Z, expected only W"),
        (0, "Y", "Y is read by R, expected only Y"),
    ],
)
def test_fusing_an_output_or_a_shared_intermediate_is_refused(at: int, tensor: str, message: str) -> None:
    refuses(EXPRESSION_FUSION, ACTIVATED, (at,), message, tensor=tensor)


def test_value_with_other_readers_is_not_fused() -> None:
    program = parse(text(ACTIVATED) + "output W, Y\n")
    refuses(EXPRESSION_FUSION, program, (1,), "Y is an output, its value is needed outside", tensor="Y")
    assert EXPRESSION_FUSION.explain is not None
    assert "Y is an output" in EXPRESSION_FUSION.explain(program, (1,))
    refuses(EXPRESSION_FUSION, program, (0,), "the parameter 'tensor' is missing")
