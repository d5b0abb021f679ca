"""Parts of stashed values are computed where they are read and nowhere else: beyond that they have no legal reads."""

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.autodiff.stash import Passes, analyse_passes, split_passes
from einnet_explore.autodiff.values import SUM_FORMS, SumForm
from einnet_explore.equivalence.reads import reads_legally
from einnet_explore.ir import Program
from tests.strategies import inputs_for
from tests.test_stash import again, check_integers, outputs

# Y[i%4-1] reads D[2*((i+1)//2) - 4*(i//4) - 2]: intervals take i//4 and (i+1)//2 for strangers and say [-8, 9).
QUOTIENTS = """
    tensor A[]
    tensor B[]
    tensor C[5, 2]
    tensor D[2] pad [(2, 1)] value -2
    Y[h:-1..4] = sum[f:2, w:2] 1 + -2*A[]*B[] + C[f+w, w] * D[2*(h // 2)]
    Z[i:-3..6] = Y[{}] * 2"""

# The domain alone keeps i below 4, where A ends.
DOMAIN = """
    tensor A[4, 3]
    Z[i:9 | 0<=i<4] = 2 * {[z:4] sum[k:3] A[z, k]}[i]"""

# i and j are read together only where i+j < 4; over the box of both A would need 3+3+2 < 6.
CORNER = """
    tensor A[6]
    tensor B[3]
    tensor X[4]
    Z[i:4, j:4 | 0<=i+j<4] = relu(X[i]) * {[z:4, y:4 | 0<=z+y<4] sum[k:3] A[z+y+k] * B[k]}[i, j]"""


def passes_of(forward: Program, form: SumForm) -> Passes:
    found = analyse_passes(forward, again(forward), form)
    return split_passes(found, found.problem.cheapest())


@pytest.mark.parametrize("form", SUM_FORMS)
@pytest.mark.parametrize(
    "text",
    [*(QUOTIENTS.format(at) for at in ("i%4-1", "2-i%4", "i%5-1", "2*((i+3)//4)-1", "(i+1)%4-1")), DOMAIN, CORNER],
)
def test_no_part_reads_beyond_its_reach(text: str, form: SumForm) -> None:
    forward = ee.parse(text)
    made = passes_of(forward, form)
    for program in (made.forward, made.backward):
        assert all(reads_legally(e.scope) for e in program.equations)
    check_integers(forward, again(forward), form)


def test_a_part_has_the_range_that_is_read() -> None:
    made = passes_of(ee.parse(QUOTIENTS.format("i%4-1")), False)
    shapes = {e.name: e.scope.shape for e in made.forward.equations}
    assert shapes["stash1"] == (5,), "D is read at -2 … 2"
    assert "sum[" not in ee.text(made.backward), "the stash is read, though intervals do not see it within reach"


def test_a_stash_is_read_where_a_domain_alone_keeps_it_in_reach() -> None:
    forward = ee.parse(DOMAIN)
    made = passes_of(forward, False)
    assert "sum[" not in ee.text(made.backward)
    arrays = inputs_for(again(forward), 2) | inputs_for(forward, 1)
    kept = outputs(made.forward, arrays, "exact")
    np.testing.assert_array_equal(kept["Z"], outputs(forward, arrays, "exact")["Z"])
    assert reads_legally(next(e for e in made.forward.equations if e.name == "Z").scope)


def test_a_stash_is_as_wide_for_its_first_reader_as_for_its_last() -> None:
    # Z reads the stash in its box and is an output; G, written after it, reads one element beyond on either side.
    forward = ee.parse("tensor X[6]\nY[i:6] = exp(X[i])")
    backward = ee.parse(
        "tensor X[6]\ntensor d[6]\nZ[i:6] = exp(X[i]) pad [1]\nG[i:6] = sum[r:3] Z[i+r-1] * d[i]\noutput Z, G"
    )
    for form in SUM_FORMS:
        found = analyse_passes(forward, backward, form)
        made = split_passes(found, found.problem.cheapest())
        assert [c.ok for c in made.certificates] == [True, True]
        assert ee.parse(ee.text(made.backward)) == made.backward
