"""``show --kernel``: an element-wise program as text in each dialect, and refusals."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.support.errors import Refused
from einnet_explore.viz import kernels
from einnet_explore.viz.kernels import KERNEL_GENERATORS, elementwise_kernel, kernel_texts

CASE = """
tensor A[33, 31]
tensor S[1]
T[i:33, j:31] = relu(A[i, j]) * S[0]
Y[k:1023] = T[k // 31, k % 31] + 1
Z[j:31] = sum[i:33] T[i, j]
output Y, Z
"""


@pytest.fixture
def case(tmp_path: Path) -> str:
    path = tmp_path / "case.ein"
    path.write_text(CASE)
    return str(path)


@pytest.fixture
def elements_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the generators of other kernels than element-wise ones."""
    monkeypatch.setattr(kernels, "kernel_texts", partial(kernel_texts, makers=(elementwise_kernel,)))


@pytest.mark.usefixtures("elements_only")
@pytest.mark.parametrize(
    ("dialect", "parts"),
    [
        ("cuda", ['extern "C" __global__ void __launch_bounds__(256, 2)', "pack_16"]),
        ("opencl", ["reqd_work_group_size(256, 1, 1)", "float4"]),
    ],
)
def test_show_prints_element_wise_kernels_in_every_dialect(
    case: str, dialect: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", case, "--kernel", dialect]) == 0
    said = capsys.readouterr()
    assert all(part in said.out for part in parts)
    assert said.out.count("operand_A") >= 2 and said.out.count("operand_T") >= 2
    assert said.err == "no kernel for Z has sum[i:0..33]: a reduction is not element-wise\n"


def test_show_kernel_accepts_element_types_and_refuses_unknown_ones(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", case, "--kernel", "cuda", "--dtype", "float16"]) == 0
    assert "__half22float2" in capsys.readouterr().out
    assert main(["show", case, "--kernel", "cuda", "--dtype", "complex64"]) == 2
    assert "dtype complex64: expected one of bool, int8" in capsys.readouterr().err


@pytest.mark.usefixtures("elements_only")
def test_show_kernel_fails_without_an_element_wise_equation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "turned.ein"
    path.write_text("tensor A[3, 5]\nY[j:5, i:3] = A[i, j]\n")
    assert main(["show", str(path), "--kernel", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("error: no kernel: Y reads A[i, j] of 15 elements at 5*i+j")


def test_unknown_dialect_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["show", case, "--kernel", "metal"])
    assert stopped.value.code == 2 and "metal" in capsys.readouterr().err
    with pytest.raises(Refused, match="dialect 'metal'"):
        kernel_texts(ee.parse("tensor A[3]\nY[i:3] = A[i]"), "metal")


def test_an_element_wise_equation_is_none_for_the_others() -> None:
    program = ee.parse(CASE)
    assert KERNEL_GENERATORS[0] is elementwise_kernel
    for dialect in ("cuda", "opencl"):
        alone = kernel_texts(program, dialect, makers=(elementwise_kernel,))
        assert [bool(k.text) for k in alone] == [True, True, False]
        assert [k.text for k in kernel_texts(program, dialect)[:2]] == [k.text for k in alone[:2]]


@pytest.mark.parametrize(("dialect", "said"), [("c", "void Y("), ("cuda", " Y("), ("opencl", "void Y(")])
def test_show_kernel_prints_fused_reductions(dialect: str, said: str) -> None:
    program = ee.parse("tensor X[4, 5]\nY[i:4, j:5] = exp(X[i, j]) / {[i:4] sum[j:5] exp(X[i, j])}[i]")
    (kernel,) = kernel_texts(program, dialect)
    assert said in kernel.text and "// stage 1" in kernel.text  # the sum, then what is divided by it
    with pytest.raises(Refused, match="a table of known numbers is read"):
        kernel_texts(ee.parse("tensor X[2]\nY[i:2] = X[i] * table[2] (1, 1/2) [i]"), dialect)


@pytest.mark.parametrize("show", ["show", "fuse"])
def test_integers_that_would_wrap_are_refused(show: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product = tmp_path / "product.ein"
    product.write_text("tensor A[4, 40]\ntensor B[40, 4]\nY[i:4, j:4] = sum[k:40] A[i, k] * B[k, j]\noutput Y\n")
    assert main([show, str(product), "--kernel", "c", "--dtype", "int8"]) == 2
    assert "Y: values lie in [-650240, 655360], int8 holds [-128, 127]; expected a wider" in capsys.readouterr().err
    assert main([show, str(product), "--kernel", "c", "--dtype", "int32"]) == 0
    for body, dtype, fits in (
        ("maximum(A[i], 3)", "int8", True), ("minimum(A[i], 5) * 1", "int8", True), ("A[i] + A[i]", "uint8", False),
        ("-A[i]", "int16", False), ("maximum({[i:3] -A[i]}[i], 0)", "int16", False), ("A[i] - 1", "uint16", False),
    ):  # fmt: skip
        product.write_text(f"tensor A[3]\nY[i:3] = {body}\noutput Y\n")
        assert main([show, str(product), "--kernel", "c", "--dtype", dtype]) in ((0,) if fits else (2,)), body
        assert fits or f"{dtype} holds" in capsys.readouterr().err
