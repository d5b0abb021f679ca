"""Worked derivations, step by step by hand: EinNet Fig. 5, Fig. 6, Fig. 11 and Fig. 14, at sizes of our own."""

import numpy as np
import pytest

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, Program, Scope
from einnet_explore.rules import (
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    EOPERATOR_GENERATION,
    SUMMATION_SPLITTING,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
)
from einnet_explore.syntax import parse
from tests.path_pairs import larger_convolution
from tests.rules_kit import Steps, assert_equal, refuses


def conv3x3(n: int, h: int, w: int, c: int, f: int) -> Program:
    return parse(f"""
        tensor A[{n}, {h}, {w}, {c}] pad [0, 1, 1, 0]
        tensor K[3, 3, {f}, {c}] weight
        Y[n:{n}, h:{h}, w:{w}, f:{f}] = sum[c:{c}, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
    """)


def transposed(n: int, h: int, w: int, f: int, c: int, k: int, stride: int, pad: int) -> Program:
    far = k + stride * max(h, w)
    y, x = ((m - 1) * stride - 2 * pad + k for m in (h, w))
    return parse(f"""
        tensor A[{n}, {h}, {w}, {f}]
        tensor K[{k}, {k}, {c}, {f}] weight pad [({far}, {far}), ({far}, {far}), 0, 0]
        Y[n:{n}, y:{y}, x:{x}, c:{c}] =
            sum[h:{h}, w:{w}, f:{f}] A[n, h, w, f] * K[y+{pad}-{stride}*h, x+{pad}-{stride}*w, c, f]
    """)


def inner(program: Program, *path: int) -> Scope:
    return program.scope_at((0, *path))


@pytest.mark.parametrize(("n", "h", "w", "c", "f"), [(1, 4, 4, 3, 2), (2, 5, 3, 2, 4), (1, 3, 6, 1, 1)])
def test_conv3x3_becomes_matmul_and_offset_reduce(n: int, h: int, w: int, c: int, f: int) -> None:
    steps = Steps(conv3x3(n, h, w, c, f))
    steps.find(SUMMATION_SPLITTING, (0,), outer=["r", "s"])
    phi = {"r": "r", "s": "s", "f": "f", "n": "n", "t1": "h+r-1", "t2": "w+s-1"}
    steps.do(VARIABLE_SUBSTITUTION, (0, 0), phi=phi)
    assert inner(steps.end, 0, 0).box[4:] == ((-1, h + 1), (-1, w + 1))
    assert [repr(b) for b in inner(steps.end, 0, 0).domain] == [f"0 <= -r+t1+1 < {h}", f"0 <= -s+t2+1 < {w}"]
    steps.find(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0, 1])
    steps.find(TRAVERSAL_MERGING, (0,), access=0)
    steps.find(BOUNDARY_TIGHTENING, (0, 0), ranges={"t1": [0, h], "t2": [0, w]})
    product = inner(steps.end, 0)
    assert repr(product.body) == "*(A[n, t1, t2, c], K[r, s, f, c])"
    assert product.padding == ((0, 0), (0, 0), (0, 0), (0, 0), (1, 1), (1, 1))
    assert product.domain == () and product.value == 0
    assert repr(inner(steps.end).body).endswith("[r, s, f, n, h+r-1, s+w-1]")


@pytest.mark.parametrize("sizes", [(1, 4, 5, 3, 2), (2, 6, 3, 2, 2)])
def test_the_joint_skew_is_found_with_a_layout_that_matmul_has(sizes: tuple[int, ...]) -> None:
    steps = Steps(conv3x3(*sizes)).do(SUMMATION_SPLITTING, (0,), outer=["r", "s"])
    joint = next(iter(VARIABLE_SUBSTITUTION.matches(steps.end, (0, 0)))).to_json()["params"]["phi"]
    assert list(joint) == ["n", "t1", "t2", "r", "s", "f"]  # m, then n, as Matmul writes them
    assert (joint["t1"], joint["t2"]) == ("h+r-1", "s+w-1")


@pytest.mark.parametrize(
    ("h", "w", "k", "stride", "pad", "taps"),
    [(3, 4, 4, 2, 1, 2), (3, 3, 3, 2, 1, 2), (3, 5, 5, 3, 0, 2), (4, 3, 2, 1, 0, 2), (4, 4, 9, 4, 3, 3)],
)
def test_strided_transposed_convolution_becomes_matmul_and_overlap_add(
    h: int, w: int, k: int, stride: int, pad: int, taps: int
) -> None:
    steps = Steps(transposed(2, h, w, 3, 2, k, stride, pad)).find(SUMMATION_SPLITTING, (0,), outer=["h", "w"])
    joint = next(iter(VARIABLE_SUBSTITUTION.matches(steps.end, (0, 0)))).to_json()["params"]
    assert list(joint["phi"]) == ["n", "h", "w", "t1", "t2", "c"]
    steps.do(VARIABLE_SUBSTITUTION, (0, 0), **joint)
    steps.find(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0, 1])
    steps.find(TRAVERSAL_MERGING, (0,), access=0)
    steps.find(BOUNDARY_TIGHTENING, (0, 0), ranges={"t1": [0, k], "t2": [0, k]})
    assert repr(inner(steps.end, 0).body) == "*(A[n, h, w, f], K[t1, t2, c, f])"
    window = next(m.params.window for m in BOUNDARY_TIGHTENING.matches(steps.end, (0,)) if m.params.window)
    assert {x.name: n for x, _, n in window} == {"h": taps, "w": taps}
    steps.do(BOUNDARY_TIGHTENING, (0,), window={x.name: [repr(base), n] for x, base, n in window})
    assert [y.extent for y in inner(steps.end).summations] == [taps, taps]


def test_transposed_convolution_golden() -> None:
    start = parse("""
        tensor A[1, 2, 2, 3]
        tensor K[3, 4, 4, 2] weight pad [0, (4, 4), (4, 4), 0]
        Y[n:1, y:4, x:4, c:2] = sum[h:2, w:2, f:3] A[n, h, w, f] * K[f, y+1-2*h, x+1-2*w, c]
    """)
    steps = Steps(start).do(SUMMATION_SPLITTING, (0,), outer=["h", "w"])
    steps.do(
        VARIABLE_SUBSTITUTION, (0, 0), phi={"n": "n", "h": "h", "w": "w", "r": "y+1-2*h", "s": "x+1-2*w", "c": "c"}
    )
    steps.do(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0, 1]).do(TRAVERSAL_MERGING, (0,), access=0)
    steps.do(BOUNDARY_TIGHTENING, (0, 0), ranges={"r": [0, 4], "s": [0, 4]})
    steps.do(BOUNDARY_TIGHTENING, (0,), window={"h": ["(y+1)//2", 2], "w": ["(x+1)//2", 2]})
    inputs = {"A": np.arange(12).reshape(1, 2, 2, 3), "K": np.arange(96).reshape(3, 4, 4, 2)}
    golden = """190 193 740 755 770 785 592 604 992 1016 2704 2770 2836 2902 1832 1874 1184 1208 3232 3298 3364 3430
        2168 2210 1114 1135 2660 2711 2762 2813 1624 1654"""
    assert evaluate(steps.end, inputs)["Y"].ravel().tolist() == list(map(int, golden.split()))


@pytest.mark.parametrize(("m", "d"), [(8, 2), (9, 3), (7, 2), (10, 4)])
def test_dilated_band_product_by_residue(m: int, d: int) -> None:
    """Fig. 14: the residue becomes a batch; the band inside each class is dense."""
    start = parse(f"""
        tensor A[2, {m}, 3]
        tensor B[2, {m}, 3] pad [0, {2 * d}, 0]
        Y[b:2, m:{m}, w:5] = sum[k:3] A[b, m, k] * B[b, m+{d}*w-{2 * d}, k]
    """)
    phi = {"b": "b", "m1": f"m % {d}", "m2": f"m // {d}", "w": "w"}
    steps = Steps(start).find(VARIABLE_SUBSTITUTION, (0,), phi=phi)
    assert inner(steps.end, 0).shape == (2, d, -(-m // d), 5)
    if m % d:
        assert len(inner(steps.end, 0).domain) == 1
        steps.find(BOUNDARY_RELAXING, (0,), access=0, bounds=[0], wrap=True)
    assert inner(steps.end, 0).domain == ()


def test_one_dense_band_over_all_residues_is_refused() -> None:
    """One dense band over m and w puts the windows of two residue classes in one place."""
    start = parse("""
        tensor A[8, 3]
        tensor B[8, 3] pad [4, 0]
        Y[m:8, w:5] = sum[k:3] A[m, k] * B[m+2*w-4, k]
    """)
    message = "Φ is not injective: (m=0, w=1) and (m=1, w=0) both give (t=1)"
    refuses(VARIABLE_SUBSTITUTION, start, (0,), message, phi={"t": "m+w"})


def test_conv5_becomes_conv3_with_more_channels() -> None:
    """Fig. 6 in one dimension: pad the window to an even one, take its halves apart, skew what is left."""
    assert [tuple(map(repr, a.index)) for a in inner(larger_convolution().end, 0).body.args] == [  # type: ignore[union-attr]
        ("n", "r1+t-2", "c"),
        ("r1+3*r2", "f", "c"),
    ]


@pytest.mark.parametrize("index", ["x+2*y", "x-2*y+6", "7-x-2*y"])
def test_digits_of_one_index_become_one_iterator(index: str) -> None:
    summed = parse(f"tensor A[8]\nY[q:1] = sum[x:2, y:4] A[{index}]")
    found = [m.apply(summed).after for m in VARIABLE_SUBSTITUTION.matches(summed, (0,))]
    assert any([y.extent for y in inner(p).summations] == [8] for p in found)
    for after in found:
        assert_equal(summed, after)
    traversed = parse(f"tensor A[8]\nY[x:2, y:4] = A[{index}]")
    (after,) = [m.apply(traversed).after for m in VARIABLE_SUBSTITUTION.matches(traversed, (0,))]
    assert inner(after, 0).shape == (8,) and inner(after, 0).domain == ()
    assert_equal(traversed, after)


def test_remaining_scope_of_conv3x3_is_memory_bound() -> None:
    steps = Steps(conv3x3(1, 4, 4, 8, 4))
    refuses(EOPERATOR_GENERATION, steps.end, (0,), "FLOP/element is not below 4: this is compute-bound")
    steps.do(SUMMATION_SPLITTING, (0,), outer=["r", "s"])
    repeated = "the scope at 0.0 sums over c for every read of it: instantiate it first"
    refuses(EOPERATOR_GENERATION, steps.end, (0,), repeated)
    assert isinstance(inner(steps.end).body, Access)
