"""A chain of proved steps is one certificate, where no proof of its two ends is within reach, too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

import einnet_explore as ee
from einnet_explore.checker.record import RecordError, check_record, read_record
from einnet_explore.equivalence.assumptions import EXPONENTIAL_AXIOM
from einnet_explore.equivalence.certificate import (
    Certificate,
    Link,
    certify,
    certify_chain,
    compose_certificates,
    program_hash,
)
from einnet_explore.ir import Program
from einnet_explore.rules import FEWER_PRODUCTS, Derivation
from einnet_explore.strategies.candidate import to_record
from einnet_explore.syntax import parse

(BILINEAR,) = FEWER_PRODUCTS


def nested(h: int, w: int, channels: int) -> Derivation:
    """A 3x3 convolution by F(4x4, 3x3): the first dimension, then the second."""
    found = Derivation(ee.ops.conv2d(N=1, H=h, W=w, C=channels, F=channels, R=3, S=3, padding=1))
    for traversal in ("h", "w"):
        places = [(n,) for n in range(len(found.end.equations))]
        every = [m for at in places for m in BILINEAR.matches(found.end, at)]
        found = found.then(
            next(
                m
                for m in every
                if m.to_json()["params"]
                == {"traversal": traversal, "summation": "rs"["hw".index(traversal)], "outputs": 4}
            )
        )
    return found


def chain(programs: Sequence[Program]) -> list[Link]:
    return [(a, b, certify(a, b)) for a, b in pairwise(programs)]


def relus(*bodies: str) -> list[Program]:
    return [parse(f"tensor A[4]\nY[i:4] = {body}\n") for body in bodies]


def test_derivation_with_distant_ends_is_proved_by_its_steps() -> None:
    steps = nested(30, 27, 64)
    alone = certify(steps.start, steps.end, exact_elements=None)
    assert alone.kind == "unknown" and "more than" in str(alone.counterexample)
    record = to_record(steps, [certify(s.before, s.after) for s in steps.steps])
    report = check_record(record)
    assert report.whole.kind == "proved" and report.whole.method == "composition"
    assert report.whole.programs == tuple(map(program_hash, (steps.start, *(s.after for s in steps.steps))))
    assert "start to end: proved (composition, 2 steps, 2 proved)" in str(report)
    assert report.to_json()["whole"] == record["certificate"] == report.whole.to_json()
    assert Certificate.from_json(record["certificate"]) == report.whole
    session = ee.explore(steps.start)
    session.adopt(steps)
    assert session.check() == report.whole
    assert str(report.whole).startswith("proved (composition of 2 steps, 2 proved): equal for every input")


def test_proof_by_ends_is_preferred_to_proof_by_steps() -> None:
    found = certify_chain(chain(relus("relu(A[i])", "relu(relu(A[i]))", "relu(A[i])")))
    assert (found.kind, found.method, found.programs) == ("proved", "identical", ())


def test_an_evaluated_step_proves_nothing_of_the_ends() -> None:
    links = chain(relus("A[i]", "log(exp(A[i]))", "log(exp(log(exp(A[i]))))"))
    assert [c.kind for _, _, c in links] == ["exact", "exact"]
    found = compose_certificates(links)
    assert (found.kind, found.detail) == ("exact", "2 steps, 0 proved")
    assert "not proved" in str(found)
    assert certify_chain(links).method == "evaluation"


def test_a_false_step_is_named() -> None:
    found = compose_certificates(chain(relus("A[i]", "A[i] + 0*A[i]", "2*A[i]")))
    assert found.kind == "false" and found.counterexample is not None
    assert found.counterexample == "step 2: element [0]: A[0] occurs 1 time before and 2 times after"


def test_ends_that_differ_are_false_whatever_the_steps_claim() -> None:
    a, b, c = relus("A[i]", "A[i] + 0*A[i]", "2*A[i]")
    claimed = Certificate("proved", "term relation")
    assert certify_chain([(a, b, claimed), (b, c, claimed)]).kind == "false"


def test_chain_whose_steps_do_not_meet_is_refused() -> None:
    a, b, c = relus("A[i]", "A[i] + 0*A[i]", "2*A[i]")
    with pytest.raises(ValueError, match="step 2 starts from "):
        compose_certificates([(a, b, certify(a, b)), (c, c, certify(c, c))])


def test_programs_are_joined_by_their_normal_form() -> None:
    a, b = relus("A[i] + 0*A[i]", "A[i]")
    renamed = parse("tensor A[4]\nY[j:4] = 0*A[j] + A[j]\n")
    assert renamed != a and program_hash(renamed) == program_hash(a) != program_hash(b)
    assert compose_certificates([(b, a, certify(b, a)), (renamed, b, certify(renamed, b))]).kind == "proved"


def test_axiom_of_a_step_is_named_for_the_whole_derivation() -> None:
    texts = ("exp(v[i] + v[i+1])", "exp(v[i])*exp(v[i+1])", "exp(v[i])*exp(v[i+1]) + 0*v[i]")
    a, b, c = (parse(f"tensor v[9]\nY[i:6] = {body}\n") for body in texts)
    assert EXPONENTIAL_AXIOM in compose_certificates(chain([a, b, c])).detail


def test_derivation_without_steps_is_identical() -> None:
    assert compose_certificates([]) == certify_chain([]) == Certificate("proved", "identical")


def test_programs_of_a_certificate_are_strings() -> None:
    data = Certificate("proved", "composition").to_json()
    assert Certificate.from_json({k: v for k, v in data.items() if k != "programs"}).programs == ()
    for wrong in ("x", [1], None):
        with pytest.raises(ValueError, match=r"programs is .*, expected a list of strings"):
            Certificate.from_json({**data, "programs": wrong})


def test_certificate_in_a_record_is_not_trusted() -> None:
    a, b = relus("A[i]", "2*A[i]")
    step = {"rule": "expression_fusion", "at": "0", "params": {}, "after": "tensor A[4]\nY[i:4] = 2*A[i]\n"}
    data = {"format": "einnet-explore record", "version": 1, "start": "tensor A[4]\nY[i:4] = A[i]\n", "steps": [step]}
    claimed = {**data, "certificate": Certificate("proved", "composition", programs=("x",)).to_json()}
    assert check_record(claimed).kind == "false" and read_record(claimed).start == a
    with pytest.raises(RecordError):
        read_record({**claimed, "steps": [{**step, "after": 1}]})
    assert b != a
