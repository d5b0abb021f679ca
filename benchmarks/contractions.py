"""Compare register-tiled kernels with ONNX Runtime, operator by operator.

``python -m benchmarks.contractions [--threads N] [--seconds S] [--cold] [WORD…]``.  Both run in turn on the same
arrays, with the weights known in advance; with ``--cold``, after reads that displace all of them from the caches.  The
minimum of the samples counts, since other work on the machine only adds time.
GFLOP/s are those of the tiled kernel.

``--numerics bf16`` compares products of matrices with operands in bfloat16 with both, in float32: medians of the ratios
of neighbouring samples in processor time, the error relative to the largest element, and its bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.cost import work
from einnet_explore.ir import Equation, Program, Tensor, tensors
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.pipeline.numerics import level_report, measure_errors
from einnet_explore.pipeline.rounded_products import round_products
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.implementations import BoundEquation, implementations_of
from einnet_explore.runtime.measurement import time_calls, times_faster


def conv(c: int, f: int, size: int, window: tuple[int, int], stride: int = 1, groups: int = 1) -> Equation:
    """Return a convolution of a *size* by *size* image with *stride* in both dimensions."""
    (r, s), out = window, size // stride
    numbers = {"n": 1, "g": groups, "f": f // groups, "h": out, "w": out, "c": c // groups, "r": r, "s": s}
    return _equation("Conv2d", numbers | _both(s=stride, d=1) | {"ph": r // 2, "pw": s // 2, "H": size, "W": size})


def transposed(c: int, f: int, size: int, window: int, stride: int, padding: int) -> Equation:
    """Return a transposed convolution that multiplies rows and columns by *stride*."""
    out = size * stride
    numbers = {"n": 1, "g": 1, "f": f, "y": out, "x": out, "c": c, "h": size, "w": size, "R": window, "S": window}
    return _equation("ConvTranspose2d", numbers | _both(s=stride, p=padding))


def _both(**of: int) -> dict[str, int]:
    return {f"{name}{axis}": value for name, value in of.items() for axis in "hw"}


def _operator(name: str) -> Operator:
    return next(o for o in OPERATORS if o.name == name)


def _equation(name: str, attributes: Mapping[str, int]) -> Equation:
    operator = _operator(name)
    x, k = tensors(operator.instantiate(attributes))
    weight = Tensor(k.name, k.shape, k.padding, k.value, True)
    return Equation("Y", operator.instantiate(attributes, (x, weight)), operator.instance(attributes))


ROUNDS = 40

CASES = {
    "conv 5x5 64→3, 64²": conv(64, 3, 64, (5, 5)),
    "conv 5x5 1→56, 32²": conv(1, 56, 32, (5, 5)),
    "conv 5x5 1→56, 112²": conv(1, 56, 112, (5, 5)),
    "conv 3x3 12→12, 32²": conv(12, 12, 32, (3, 3)),
    "conv 3x3 256→20, 28²": conv(256, 20, 28, (3, 3)),
    "conv 1x7 512→21, 28²": conv(512, 21, 28, (1, 7)),
    "conv 7x1 512→21, 28²": conv(512, 21, 28, (7, 1)),
    "transposed 9x9 by 4, 56→1, 32²": transposed(56, 1, 32, 9, 4, 4),
    "transposed 4x4 by 2, 64→3, 32²": transposed(64, 3, 32, 4, 2, 1),
    "transposed 4x4 by 2, 128→64, 16²": transposed(128, 64, 16, 4, 2, 1),
    "grouped 3x3 4·(16→16), 28²": conv(64, 64, 28, (3, 3), groups=4),
    "depthwise 3x3 64, 56²": conv(64, 64, 56, (3, 3), groups=64),
    "conv 3x3 by 2, 32→64, 56²": conv(32, 64, 56, (3, 3), 2),
    "conv 3x3 by 2, 3→64, 224²": conv(3, 64, 224, (3, 3), 2),
    "conv 1x1 64→64, 56²": conv(64, 64, 56, (1, 1)),
    "conv 3x3 64→64, 56²": conv(64, 64, 56, (3, 3)),
    "conv 3x3 256→256, 14²": conv(256, 256, 14, (3, 3)),
    "conv 3x3 512→512, 7²": conv(512, 512, 7, (3, 3)),
    "conv 3x3 by 2, 256→512, 14²": conv(256, 512, 14, (3, 3), 2),
    "conv 1x1 256→256, 14²": conv(256, 256, 14, (1, 1)),
    "conv 1x1 512→1024, 14²": conv(512, 1024, 14, (1, 1)),
    "conv 1x1 2048→512, 7²": conv(2048, 512, 7, (1, 1)),
    "product 197x384 by 384x1536": _equation("Matmul", {"m": 197, "k": 384, "n": 1536}),
    "product 128x768 by 768x3072": _equation("Matmul", {"m": 128, "k": 768, "n": 3072}),
    "product 128x3072 by 3072x768": _equation("Matmul", {"m": 128, "k": 3072, "n": 768}),
}


PRODUCTS = tuple((m, k, n) for k, n in ((768, 768), (768, 3072), (3072, 768)) for m in (128, 512))
"""Rows, summed elements and columns of the products in a layer of a transformer."""


def compare_in_bfloat16(threads: int, seconds: float) -> None:
    """Print one line per product."""
    print(f"{'product':28} {'bf16 µs':>9} {'GFLOP/s':>8} {'tiled':>6} {'ONNX':>6} {'error':>8} {'bound':>8}")
    rng = np.random.default_rng(0)
    for m, k, n in PRODUCTS:
        equation = _equation("Matmul", {"m": m, "k": k, "n": n})
        program = Program(tuple(tensors(equation.scope)), (equation,), ("Y",))
        rounded = round_products(Derivation(program))
        assert rounded is not None
        arrays = {t.name: aligned_empty(t.shape) for t in program.inputs}
        for array in arrays.values():
            array[...] = rng.standard_normal(array.shape)
        constants = {t.name: arrays[t.name] for t in program.inputs if t.weight}
        calls, results = {}, {}
        for each in (*rounded.end.equations, equation):
            out = aligned_empty(each.scope.shape)
            bound = BoundEquation(each, arrays, out, threads, constants, operators=OPERATORS)
            for way in implementations_of(bound):
                if way.engine in ("bfloat16", "tiled", "onnxruntime"):
                    calls[way.engine], results[way.engine] = way.bind(arrays, out), out
                if way.engine in ("bfloat16", "tiled"):
                    break
        for engine, call in calls.items():
            call()
            results[engine] = results[engine].copy()
        want, got = ({"Y": results[engine]} for engine in ("onnxruntime", "bfloat16"))
        after = measure_errors(rounded, level_report(rounded), arrays, want, got).after
        found = time_calls(calls, rounds=ROUNDS, min_seconds=seconds)
        taken = min(found["bfloat16"].samples)
        ratios = (times_faster(found[engine], found["bfloat16"]) for engine in ("tiled", "onnxruntime"))
        print(
            f"{f'{m} x {k} by {k} x {n}':28} {taken * 1e6:9.0f} {2 * m * k * n / taken / 1e9:8.0f}",
            *(f"{ratio:6.2f}" for ratio in ratios),
            f"{after.error:8.1e} {after.bound:8.1e}" if after and after.bound else "not measured",
            flush=True,
        )


def main(argv: Sequence[str] = ()) -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(prog="benchmarks.contractions", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.1, help="seconds of measurement for each case and engine")
    parser.add_argument("--cold", action="store_true", help="read all data from memory, not from the caches")
    parser.add_argument("--numerics", choices=("bf16",), help="compare products with operands in bfloat16")
    parser.add_argument("words", nargs="*", help="only cases whose names contain one of these")
    arguments = parser.parse_args(argv)
    threads = arguments.threads
    if arguments.numerics:
        compare_in_bfloat16(threads, arguments.seconds)
        return
    print(f"{'operator':34} {'tiled µs':>9} {'GFLOP/s':>8} {'ONNX µs':>9} {'ratio':>6}   threads: {threads}")
    rng, others = np.random.default_rng(0), np.ones(this_machine().l3 // 2, np.float32)
    for name, equation in CASES.items():
        if arguments.words and not any(word in name for word in arguments.words):
            continue
        arrays = {t.name: aligned_empty(t.shape) for t in tensors(equation.scope)}
        for array in arrays.values():
            array[...] = rng.standard_normal(array.shape)
        constants = {t.name: arrays[t.name] for t in tensors(equation.scope) if t.weight}
        out = aligned_empty(equation.scope.shape)
        bound = BoundEquation(equation, arrays, out, threads, constants, operators=OPERATORS)
        ways = {way.engine: way for way in implementations_of(bound) if way.engine in {"tiled", "onnxruntime"}}
        if "tiled" not in ways:
            print(f"{name:34} no tiled kernel")
            continue
        calls = {engine: ways[engine].bind(arrays, out) for engine in ("tiled", "onnxruntime")}
        displace = others.max if arguments.cold else None
        found = time_calls(calls, rounds=ROUNDS, min_seconds=arguments.seconds, displace=displace)
        seconds, other = (min(found[engine].samples) for engine in ("tiled", "onnxruntime"))
        print(
            f"{name:34} {seconds * 1e6:9.1f} {work(equation.scope).flops / seconds / 1e9:8.0f} {other * 1e6:9.1f} "
            f"{other / seconds:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
