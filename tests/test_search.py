"""Search finds the paper's derivations, at sizes the paper never used, and proves them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.analysis import canonical_keys, flattening, padding
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import index
from einnet_explore.operators import form, layout
from einnet_explore.session.explanations import unexpanded_reason
from einnet_explore.session.run import Run
from einnet_explore.strategies import instantiation, moves
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Pruned, Reached
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.options import Options
from einnet_explore.support.limits import MEMO_ENTRIES


def search(program, target, **options):
    run = Run(program, ee.program_seconds, target=target, budget=60, options=Options(**options))
    for _ in run:
        pass
    return run


def conv(h, w, c, f, r=3, s=3, n=1):
    return ee.ops.conv2d(N=n, H=h, W=w, C=c, F=f, R=r, S=s, padding="same")


def attributes(candidate):
    return [dict(e.via.attributes) for e in candidate.operators]


def same_value(program, candidate, seed=0):
    rng = np.random.default_rng(seed)
    inputs = {t.name: rng.integers(-4, 5, t.shape) for t in program.inputs}
    want = evaluate(program, inputs)
    got = evaluate(candidate.program, inputs)
    for name in program.outputs:
        np.testing.assert_array_equal(got[name], want[name])


def offset_reduce(run, m, n, k):
    """The candidates that are one Matmul of these sizes and one eOperator that sums with offsets."""
    return [
        c
        for c in run.candidates
        if len(c.operators) == 1
        and c.eoperators == 1
        and {x: dict(c.operators[0].via.attributes)[x] for x in "mnk"} == {"m": m, "n": n, "k": k}
    ]


@pytest.mark.parametrize(("h", "w", "c", "f"), [(7, 7, 512, 512), (28, 28, 128, 128), (13, 9, 6, 10), (5, 4, 3, 2)])
def test_conv3x3_becomes_a_matmul_and_an_offset_reduce(h, w, c, f):
    run = search(conv(h, w, c, f), "Matmul")
    found = offset_reduce(run, h * w, 9 * f, c)
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    if h * w * c * f < 5000:
        same_value(conv(h, w, c, f), found[0])


@pytest.mark.parametrize(("r", "s"), [(1, 1), (1, 5), (3, 1)])
def test_flat_convolutions_become_matmuls(r, s):
    program = conv(6, 5, 4, 3, r, s)
    run = search(program, "Matmul")
    sizes = {tuple(a[x] for x in "mnk") for c in run.candidates for a in attributes(c)}
    assert (30, 3 * r * s, 4) in sizes
    same_value(program, run.best)


def test_search_finds_im2col():
    program = conv(6, 5, 4, 3)
    run = search(program, "Matmul", max_depth=0)
    assert any(a["k"] == 36 and a["m"] == 30 for c in run.candidates for a in attributes(c))
    for candidate in run.candidates:
        same_value(program, candidate)


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(2, 4, 2, 1), (3, 5, 3, 1), (4, 2, 2, 0)])
def test_strided_transposed_convolution_becomes_a_matmul_and_an_overlap_add(size, kernel, stride, padding):
    program = ee.ops.conv_transpose2d(
        N=2, H=size, W=size, in_channels=5, out_channels=3, R=kernel, S=kernel, stride=stride, padding=padding
    )
    run = search(program, "Matmul")
    found = offset_reduce(run, 2 * size * size, 3 * kernel * kernel, 5)
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} <= {"proved"}
    same_value(program, found[0])


@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("dilation", [2, 3, 4, 8])
@pytest.mark.parametrize("operator", ["G2BMM", "GBMM"])
def test_dilated_band_product_becomes_a_plain_one_with_the_residue_as_batch(operator, dilation, rest):
    """A length that the dilation does not divide is padded to the next multiple."""
    m = 4 * dilation + rest
    made = {"G2BMM": ee.ops.g2bmm, "GBMM": ee.ops.gbmm}[operator]
    program = made(2, m, 2, 3, dilation)
    run = search(program, operator)
    wanted = {"d": 1, "W": 2, "b": 2 * dilation, "m": -(-m // dilation)}
    found = [c for c in run.candidates if any(a.items() >= wanted.items() for a in attributes(c))]
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    same_value(program, found[0])


def test_plain_reordering_leaks_across_residues_and_is_refuted():
    """Residue classes one after another along m, then a plain band: windows at a class's end read the next class."""
    right = ee.parse(
        """
        tensor A[1, 6, 3]
        tensor B[1, 6, 3] pad [0, 2, 0]
        Y[b:1, m:6, j:3] = sum[k:3] A[b, m, k] * B[b, m+2*j-2, k]
        """
    )
    wrong = ee.parse(
        """
        tensor A[1, 6, 3]
        tensor B[1, 6, 3] pad [0, 2, 0]
        A1[b:1, m:6, k:3] = A[b, 2*(m%3)+m//3, k]
        B1[b:1, m:6, k:3] = B[b, 2*(m%3)+m//3, k] pad [0, 1, 0]
        T[b:1, m:6, j:3] = sum[k:3] A1[b, m, k] * B1[b, m+j-1, k]
        Y[b:1, m:6, j:3] = T[b, 3*(m%2)+m//2, j]
        """
    )
    found = certify(right, wrong)
    assert found.kind == "false"
    # The window of m = 1, the first odd one, begins at B[-1], which is padding; reordered it reads B[4], an even one.
    assert found.counterexample == "element [0, 1, 0]: A[0, 1, 0] · B[0, 4, 0] occurs 0 times before and 1 time after"
    by_hand = matching_rule(tuple(o for o in ee.OPERATORS if o.name == "G2BMM")).matches(right, (0,))
    assert all(dict(match.params.attributes)["d"] == 2 for match in by_hand)


@pytest.mark.parametrize(("h", "w"), [(8, 8), (7, 9)])
@pytest.mark.parametrize("dilation", [2, 3])
def test_dilated_convolution_becomes_a_dense_one(h, w, dilation):
    program = ee.ops.conv2d(N=1, H=h, W=w, C=3, F=2, R=3, S=3, dilation=dilation, padding="same")
    run = search(program, "Conv2d", max_depth=1)
    wanted = {"dh": 1, "dw": 1, "sh": 1, "sw": 1, "n": dilation**2, "r": 3, "s": 3}
    found = [c for c in run.candidates if any(a.items() >= wanted.items() for a in attributes(c))]
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    same_value(program, found[0])


def test_strided_convolution_becomes_a_dense_one_over_phases():
    program = ee.ops.conv2d(N=1, H=8, W=8, C=3, F=2, R=3, S=3, stride=2, padding=1)
    run = search(program, "Conv2d", max_depth=1)
    wanted = {"sh": 1, "sw": 1, "dh": 1, "dw": 1, "r": 2, "s": 2, "c": 12, "h": 4, "w": 4}
    found = [c for c in run.candidates if any(a.items() >= wanted.items() for a in attributes(c))]
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    same_value(program, found[0])


def test_conv5x5_becomes_a_conv3x3_with_four_times_the_channels():
    program = ee.ops.conv2d(N=2, H=7, W=6, C=3, F=1, R=5, S=5, padding=2)
    run = search(program, "Conv2d", max_depth=2)
    found = [c for c in run.candidates if any(a.items() >= {"r": 3, "s": 3, "f": 4}.items() for a in attributes(c))]
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    same_value(program, found[0])


def states_until(run, reached):
    """Return the number of states when a candidate satisfies *reached*."""
    for event in run:
        if isinstance(event, Found) and reached(run.candidates[-1]):
            return len(run.search.states)
    return None


EARLY = {
    "Conv3x3": (conv(7, 7, 512, 512), "Matmul", {"m": 49, "n": 9 * 512, "k": 512}),
    "Conv3x3, other sizes": (conv(13, 9, 6, 10), "Matmul", {"m": 13 * 9, "n": 9 * 10, "k": 6}),
    "ConvTranspose": (
        ee.ops.conv_transpose2d(N=16, H=2, W=2, in_channels=448, out_channels=256, R=4, S=4, stride=2, padding=1),
        "Matmul",
        {"m": 64, "n": 16 * 256, "k": 448},
    ),
    "Conv5x5": (
        ee.ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, layout="NCHW", padding=2),
        "Conv2d",
        {"r": 3, "s": 3, "f": 4},
    ),
    "Conv9x7": (conv(28, 20, 16, 8, 9, 7), "Conv2d", {"r": 5, "s": 4, "f": 32}),
    "G2BMM": (ee.ops.g2bmm(b=8, m=10000, w=32, k=512, dilation=8), "G2BMM", {"b": 64, "d": 1, "W": 32}),
}


@pytest.mark.parametrize("case", EARLY)
def test_targets_are_found_early(case):
    """States needed, not seconds, so that the bound does not depend on the machine."""
    program, target, wanted = EARLY[case]
    run = Run(program, ee.program_seconds, target=target)
    assert states_until(run, lambda c: any(wanted.items() <= a.items() for a in attributes(c))) <= 20


def test_every_candidate_keeps_the_value():
    program = conv(4, 3, 2, 3)
    run = search(program, (), max_depth=2)
    assert len(run.candidates) > 3
    for candidate in run.candidates:
        same_value(program, candidate)


def test_larger_depth_reaches_every_earlier_program():
    program = conv(4, 3, 2, 3)
    for strategy in ("paper", "best_first"):
        reached = []
        for depth in range(3):
            engine = Search(program, ee.program_seconds, Options(strategy=strategy, max_depth=depth, patience=9))
            reached.append({ee.program_key(e.state.program) for e in engine.run() if isinstance(e, Reached | Found)})
        assert reached[0] <= reached[1] <= reached[2]
        assert len(reached[2]) > len(reached[1])


def test_pruned_states_name_their_twin():
    engine = Search(conv(4, 3, 2, 3), ee.program_seconds, Options(strategy="paper", max_depth=2))
    events = list(engine.run())
    pruned = [e for e in events if isinstance(e, Pruned)]
    assert pruned and all(e.twin is not None and e.twin < len(engine.states) for e in pruned)


def test_every_state_that_was_not_followed_says_why():
    run = search(conv(4, 3, 2, 3), "Matmul", max_depth=2, patience=99)
    twins = [p for p in run.pruned if p.twin]
    assert twins
    for each in twins:
        assert any(why.endswith(f"reached by {run.search.path(each.twin)}") for why in run.why_pruned(each.parent))
    deepest = next(s for s in run.search.states if s.depth == 2 and s.phase == "explorative")
    assert "it is 2 choices from the start, " in run.why_pruned(deepest.id)[-1]
    assert "the search goes to depth 2" in run.why_pruned(deepest.id)[-1]
    assert run.search.path(0) == "the start itself"
    assert "summation_splitting at 0" in {run.search.path(s.id) for s in run.search.states}

    cut = search(conv(4, 3, 2, 3), "Matmul", patience=0)
    left = [s for s in cut.search.states if s.depth == 1 and s.phase == "explorative"]
    assert any("in 0 levels nothing got cheaper than " in why for s in left for why in cut.why_pruned(s.id))
    stopped = Search(conv(4, 3, 2, 3), ee.program_seconds)
    assert isinstance(next(iter(stopped.run())), Reached)
    assert "the search has not come to it" in unexpanded_reason(stopped, 0)


def test_a_run_reports_verdicts_of_its_candidates():
    run = search(conv(4, 3, 2, 3), "Matmul", max_depth=1)
    report = run.report("case")
    assert {c["certificate"] for c in report["candidates"]} == {"proved"}
    assert report["complete"] is True and report["unique"] == len(run.search.states)
    assert ", complete to depth 1, " in run.table().caption
    cheap = search(conv(4, 3, 2, 3), "Matmul", patience=0)
    assert cheap.search.complete is False and cheap.search.ended
    assert ", ended: nothing cheaper in 0 levels, " in cheap.table().caption
    early = Run(conv(4, 3, 2, 3), ee.program_seconds, target="Matmul", states=3)
    for _ in early:
        pass
    assert ", not exhausted: limit of 3 states reached, " in early.table().caption


def test_every_end_of_a_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = conv(4, 3, 2, 3)

    def ending(**limits: object) -> str:
        return ee.search(program, target="Matmul", **limits).ending

    assert ending(budget=0.0) == "not exhausted: budget of 0 s spent"
    assert ee.search(ee.ops.matmul(4, 5, 3)).ending == "complete"
    live = ee.live_search(program)
    assert live.ending == "not exhausted"
    live.start().stop()
    live.wait(20)
    assert live.ending == "not exhausted: stopped"
    monkeypatch.setattr("einnet_explore.session.running_search.MEMORY_LIMIT", SimpleNamespace(full=lambda: True))
    assert ending() == "not exhausted: memory limit reached"


ATTENTION = """tensor E[2, 8, 8]
tensor V[2, 8, 4]
tensor Z[2, 8]
O[b:2, i:8, d:4] = sum[j:8] E[b, i, j] * V[b, j, d] / Z[b, i]"""


@pytest.mark.parametrize("source", [ATTENTION, ATTENTION.replace("8", "16")])
def test_a_division_that_does_not_depend_on_the_sum_is_no_obstacle(source: str) -> None:
    run = ee.search(ee.parse(source))
    assert run.find("BatchMatmul", b=2) and run.best is not None and run.verdict(run.best) == "proved"
    assert run.blockers() == ()


def test_a_search_without_candidates_names_the_equation_and_a_rewrite_that_helps() -> None:
    session = ee.explore(ee.parse(ATTENTION))
    run = session.search(between=())
    (blocker,) = run.blockers()
    assert blocker.equation == "O" and "compute-bound" in blocker.why and blocker.unblock is not None
    assert blocker.unblock.rule.name == "distributivity"
    assert run.table().caption.endswith("Apply distributivity at 0 with direction = out and search from there")
    session.apply(blocker.unblock)
    assert session.search(between=()).candidates


def test_a_best_candidate_that_is_slower_than_the_start_is_called_so() -> None:
    slow = ee.search(conv(4, 3, 2, 3), target="Matmul", max_depth=1)
    start = ee.program_seconds(slow.search.start)[0]
    assert slow.best is not None and slow.best.seconds > start
    assert "no candidate is faster than the original program, by estimate: the best takes " in slow.table().caption
    fast = ee.search(ee.ops.matmul(512, 512, 512))
    assert fast.best is not None and "slower" not in fast.table().caption


def test_bad_options_say_what_was_expected():
    with pytest.raises(ValueError, match="expected one of best_first, paper"):
        Options(strategy="luck")
    with pytest.raises(ValueError, match="expected 0 or more"):
        Options(max_depth=-1)
    with pytest.raises(ValueError, match="ahead -1: expected 0 or more"):
        Options(ahead=-1)
    for name in ("max_depth", "patience", "ahead"):
        for wrong in (1.5, float("nan"), "2", None):
            with pytest.raises(
                ValueError, match=f"{name.replace('_', ' ')} {wrong}: expected 0 or more, a whole number"
            ):
                Options(**{name: wrong})
    assert Options(max_depth=np.int64(3)) == Options(max_depth=3)  # also as JSON
    assert type(Options(max_depth=np.int64(3)).max_depth) is int
    with pytest.raises(ValueError, match="unknown target 'Frobnicate', expected one of"):
        Run(conv(4, 3, 2, 3), ee.program_seconds, target="Frobnicate")


SEVERAL = {
    "a chain of products": (
        """
        tensor A[6, 9]
        tensor B[9, 8]
        tensor C[8, 7]
        Y[i:6, l:7] = sum[k:8] {[i:6, k:8] sum[j:9] A[i, j] * B[j, k]}[i, k] * C[k, l]
        """,
        ("Matmul", "Matmul"),
        0,
    ),
    "a sum of products": (
        """
        tensor A[6, 9]
        tensor B[9, 8]
        tensor C[6, 7]
        tensor D[7, 8]
        Y[i:6, l:8] = {[i:6, l:8] sum[j:9] A[i, j] * B[j, l]}[i, l] + {[i:6, l:8] sum[k:7] C[i, k] * D[k, l]}[i, l]
        """,
        ("Matmul", "Matmul"),
        1,
    ),
    "bias, residual and activation": (
        """
        tensor A[6, 9]
        tensor B[9, 8]
        tensor b[8] weight
        tensor R[6, 8]
        Y[i:6, l:8] = relu({[i:6, l:8] sum[j:9] A[i, j] * B[j, l]}[i, l] + b[l] + R[i, l])
        """,
        ("Matmul",),
        1,
    ),
    "a product, then a convolution": (
        """
        tensor A[20, 9]
        tensor B[9, 7] weight
        tensor K[3, 3, 6, 7] weight
        Y[h:5, w:4, f:6] = sum[r:3, s:3, c:7]
            {[h:5, w:4, c:7] sum[k:9] A[4*h+w, k] * B[k, c]} pad [1, 1, 0][h+r-1, w+s-1, c] * K[r, s, f, c]
        """,
        ("Matmul", "Conv2d"),
        None,
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_operators_in_one_candidate(name):
    source, operators, eoperators = SEVERAL[name]
    program = ee.parse(source)
    run = search(program, operators, max_depth=1)
    found = [
        c
        for c in run.candidates
        if tuple(e.via.operator for e in c.operators) == operators and eoperators in (None, c.eoperators)
    ]
    assert found
    assert {x.kind for x in run.certificates(found[0].derivation)} == {"proved"}
    same_value(program, found[0])


def test_a_maximum_is_a_pooling_and_nothing_else():
    program = ee.parse(
        "tensor A[1, 5, 4, 3] pad [0, 1, 1, 0] value -inf\nY[n:1, h:5, w:4, c:3] = max[r:3, s:3] A[n, h+r-1, w+s-1, c]"
    )
    run = search(program, (), max_depth=1)
    assert {e.via.operator for c in run.candidates for e in c.operators} == {"MaxPool2d"}
    for candidate in run.candidates:
        assert {x.kind for x in run.certificates(candidate.derivation)} == {"proved"}
        same_value(program, candidate)


@pytest.mark.parametrize(
    "module", [canonical_keys, flattening, form, index, instantiation, layout, moves, padding], ids=lambda m: m.__name__
)
def test_searches_remember_few_results(module: ModuleType) -> None:
    """More results take most of the memory of a search."""
    memos = [found for found in vars(module).values() if hasattr(found, "cache_info")]
    assert memos and all(memo.cache_info().maxsize <= MEMO_ENTRIES for memo in memos)
