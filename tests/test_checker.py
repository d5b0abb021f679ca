"""Records: written whole, read strictly, proved again by a checker that knows neither rules nor search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import einnet_check
from einnet_explore.checker.record import RecordError, check_file, check_record, require_instance
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Equation, Instance, Iterator, Scope, Tensor, mul
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import RULES, Derivation
from einnet_explore.rules.base import places
from einnet_explore.session import records
from einnet_explore.strategies.candidate import save_record, to_record
from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import write_atomically
from einnet_explore.syntax import parse

START = """tensor A[1, 5, 4, 6] pad [0, 1, 1, 0]
tensor K[3, 3, 6, 4] weight
Y[n:1, h:5, w:4, f:4] = sum[c:6, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, c, f]
"""


def derivation() -> Derivation:
    """A few steps, each the first match of one rule."""
    found = Derivation(parse(START))
    for name in ("summation_splitting", "variable_substitution", "boundary_relaxing", "eoperator_generation"):
        rule = next(rule for rule in RULES if rule.name == name)
        here = [m for path, _ in places(found.end) for m in rule.matches(found.end, path)]
        found = found.then(here[0]) if here else found
    assert len(found.steps) >= 3
    return found


@pytest.fixture
def record() -> dict[str, Any]:
    steps = derivation()
    proofs = [certify(s.before, s.after) for s in steps.steps]
    return json.loads(json.dumps(to_record(steps, proofs, case="conv", target=["Matmul"])))  # type: ignore[no-any-return]


def test_records_come_back_and_are_proved(record: dict[str, Any], tmp_path: Path) -> None:
    assert records.from_record(record) == derivation()
    path = tmp_path / "record.json"
    save_record(path, record)
    assert records.load_record(path) == record
    report = check_file(path)
    assert report.ok and report.kind == "proved" and report.counterexample is None, str(report)
    assert [s.claimed for s in report.steps] == ["proved"] * len(record["steps"])
    assert str(report).endswith(f"{path}: proved")
    assert json.loads(json.dumps(report.to_json()))["ok"] is True
    assert record["case"] == "conv"


def test_a_wrong_step_is_found_whatever_it_claims(record: dict[str, Any]) -> None:
    first = record["steps"][0]
    assert " * K[" in first["after"]
    first["after"] = first["after"].replace(" * K[", " + K[")
    report = check_record({**record, "steps": [first]})
    assert not report.ok and report.kind == "false"
    assert report.counterexample is not None
    assert report.counterexample.startswith(f"step 1 ({first['rule']} at 0): element [0, 0, 0, 0]: ")
    assert not report.whole.ok
    assert report.to_json()["kind"] == "false"
    assert "claimed proved" in str(report)


def test_steps_that_cancel_are_still_wrong() -> None:
    right = "tensor A[4]\nY[i:4] = A[i]\n"
    wrong = "tensor A[4]\nY[i:4] = 2*A[i]\n"
    steps = [{"rule": "expression_fusion", "at": "0", "params": {}, "after": text} for text in (wrong, right)]
    report = check_record({"format": "einnet-explore record", "version": 1, "start": right, "steps": steps})
    assert report.whole.ok and not report.ok
    assert (
        report.counterexample
        == "step 1 (expression_fusion at 0): element [0]: A[0] occurs 1 time before and 2 times after"
    )


def test_proof_of_the_ends_outweighs_an_exact_step() -> None:
    texts = ["A[i]", "log(exp(A[i]))", "A[i]"]
    programs = [f"tensor A[4]\nY[i:4] = {body}\n" for body in texts]
    steps = [{"rule": "expression_fusion", "at": "0", "params": {}, "after": text} for text in programs[1:]]
    data = {"format": "einnet-explore record", "version": 1, "start": programs[0], "steps": steps}
    assert check_record(data).kind == "proved"
    assert check_record({**data, "steps": steps[:1]}).kind == "exact"
    assert check_record({**data, "steps": []}).kind == "proved"


def test_a_start_that_is_wrong_by_itself() -> None:
    text = "tensor A[4, 4]\nY[i:4] = A[0, i] via Matmul(m=4, n=1, k=1)\n"
    report = check_record({"format": "einnet-explore record", "version": 1, "start": text, "steps": []})
    assert report.counterexample == "start: Y: Matmul takes 2 operands, the equation reads 1"


ROWS = "T[i:4, j:2] = C[i, j+{first}] via View(offset={first}, strides=(4, 1))"
COLUMNS = "T[i:4, j:2] = D[j+{first}, i] via View(offset={offset}, strides=(1, 4))"
PRODUCT = "Y[m:4, n:4] = sum[k:2] T[m, k]*B[k, n] via Matmul(m=4, n=4, k=2{lda})"


@pytest.mark.parametrize(
    ("view", "lda", "fault"),
    [
        (ROWS.format(first=1), ", lda=4", None),
        (ROWS.format(first=1), "", "takes A with stride 2 in dimension 0, T has 4"),
        (ROWS.format(first=1), ", lda=3", "takes A with stride 3 in dimension 0, T has 4"),
        (COLUMNS.format(first=1, offset=4), ", lda=4", "takes A with stride 4 in dimension 0, T has 1"),
        ("T[i:4, j:2] = C[i, j+1]", ", lda=4", "takes A with stride 4 in dimension 0, T has 2"),
        ("T[i:4, j:2] = C[i, j+1]", ", lda=2", None),
    ],
)
def test_both_checkers_compare_the_strides_of_operands(view: str, lda: str, fault: str | None) -> None:
    text = f"tensor B[2, 4]\ntensor C[4, 4]\ntensor D[4, 4]\n{view}\n{PRODUCT.format(lda=lda)}\n"
    record = {"format": "einnet-explore record", "version": 1, "start": text, "steps": []}
    report, independent = check_record(record), einnet_check.certificate(record)
    assert (report.ok, independent["kind"] == "proved") == (fault is None, fault is None)
    assert fault is None or fault in str(report.counterexample)


def test_a_view_that_changes_under_an_operator_is_refused() -> None:
    before = f"tensor B[2, 4]\ntensor C[4, 4]\n{ROWS.format(first=0)}\n{PRODUCT.format(lda=', lda=4')}\n"
    after = before.replace("C[i, j+0] via View(offset=0, strides=(4, 1))", "C[i, j]")
    step = {"rule": "expression_fusion", "at": "0", "params": {}, "after": after}
    record = {"format": "einnet-explore record", "version": 1, "start": before, "steps": [step]}
    assert check_record({**record, "steps": []}).ok
    assert "T has 2" in str(check_record(record).counterexample)
    assert "dimension 0" in str(einnet_check.certificate(record))


MATMUL = next(o for o in OPERATORS if o.name == "Matmul")


def matmul(**changed: int) -> Equation:
    size = {"m": 4, "n": 3, "k": 2}
    tensors = Tensor("A", (4, 2)), Tensor("B", (2, 3))
    return Equation("Y", MATMUL.instantiate(size, tensors), MATMUL.instance({**size, **changed}))


def test_correct_operator_calls_and_views_are_accepted() -> None:
    require_instance(matmul())
    (a, b), own = matmul().scope.body.args, matmul().scope.traversals  # type: ignore[union-attr]
    m, n, k = Iterator("x", 0, 4), Iterator("y", 0, 3), Iterator("z", 0, 2)
    renamed = Scope((m, n), (k,), mul(a.source[m, k], b.source[k, n]))  # type: ignore[union-attr]
    assert own != renamed.traversals
    require_instance(Equation("Y", renamed, matmul().via))
    require_instance(Equation("Y", renamed, None))
    require_instance(Equation("Y", renamed, Instance("eOperator")))


def test_wrong_operator_calls_are_refused_with_the_reason() -> None:
    def why(text: str) -> str:
        with pytest.raises(Refused) as found:
            require_instance(parse(f"tensor A[4, 2]\ntensor B[2, 4]\ntensor C[4, 4]\n{text}").equations[-1])
        return str(found.value)

    product = "Y[m:4, n:4] = sum[k:2] A[m, k]*B[k, n]"
    assert why(f"{product} via Nothing").startswith("unknown operator Nothing, expected one of Matmul, BatchMatmul, ")
    assert "attributes n, k are missing" in why(f"{product} via Matmul(m=4)")
    assert "operand A has box" in why(f"{product} via Matmul(m=5, n=4, k=2)")
    assert (
        why("Y[m:4, n:4] = C[m, n] + {[i:4] C[i, i]}[m] via Add(i=16)")
        == "Add reads tensors, the equation reads a scope"
    )
    assert why("Y[m:2, n:4] = sum[k:4] C[m, k]*C[k, n] via Matmul(m=4, n=4, k=4)") == (
        "Matmul(m=4, n=4, k=4) has shape (4, 4), the equation (2, 4)"
    )
    assert "is another expression: element [0, 0]: C[0, 1] · C[1, 0] occurs 1 time before" in why(
        "Y[m:4, n:4] = sum[k:4] C[m, k]*C[n, k] via Matmul(m=4, n=4, k=4)"
    )
    unlike = "Y[m:4, n:4] = max[k:4] C[m, k]*C[k, n] via Matmul(m=4, n=4, k=4)"
    assert why(unlike).endswith("reductions sum and max have no common form")
    assert (
        why("Y[i:4] = sum[k:4] C[i, k] via View")
        == "a view reads one tensor, at every point of its box, and nothing else"
    )
    assert why("Y[i:4] = A[i//2, 0] via View") == "address 2*(i // 2) is not affine"
    padded = "tensor D[4] pad [1]\nY[i:5] = D[i] via View"
    assert why(padded) == "a view reads dimension 0 of D in [0, 4], its elements lie in [0, 4)"


def test_views_are_affine_addresses() -> None:
    for body in ("A[i%3, i//3]", "A[2-j, i//3]"):
        text = f"tensor A[3, 4]\nY[i:12, j:3] = {body} via View"
        with pytest.raises(Refused):
            require_instance(parse(text).equations[0])
    for body in ("A[i//4, i%4]", "A[2-j, 0]", "A[j, j]"):
        text = f"tensor A[3, 4]\nY[i:12, j:3] = {body} via View"
        require_instance(parse(text).equations[0])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "other", "$.format: found 'other', expected 'einnet-explore record'"),
        (["version"], 2, "$.version: found 2, expected 1"),
        (["version"], True, "$.version: found true, expected a number"),
        (["start"], None, "$.start: found null, expected a string"),
        (["start"], "Y[i:4] = A[i]", "$.start:1:10: "),
        (["steps"], {}, "$.steps: found an object, expected a list"),
        (["steps", 0], [], "$.steps[0]: found a list, expected an object"),
        (["steps", 1, "rule"], 1.5, "$.steps[1].rule: found 1.5, expected a string"),
        (["steps", 1, "at"], "0.x", "$.steps[1].at: path '0.x': expected numbers"),
        (["steps", 1, "params"], 3, "$.steps[1].params: found a number, expected an object"),
        (["steps", 1, "after"], "tensor", "$.steps[1].after:1:7: "),
        (["steps", 1, "certificate"], "sure", "$.steps[1].certificate: found a string, expected an object"),
        (["steps", 1, "certificate", "kind"], "sure", "$.steps[1].certificate: certificate: kind is 'sure'"),
    ],
)
def test_malformed_records_are_refused_with_their_path(
    record: dict[str, Any], path: list[Any], value: object, message: str
) -> None:
    at: Any = record
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(RecordError) as caught:
        check_record(record, source="R.json")
    assert str(caught.value).startswith("R.json: ") and message in str(caught.value)


def test_files_without_a_record_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content, message in (
        (b"{", "$: expected JSON; at line 1 column 2: Expecting property name"),
        (b"\xff\xfe", "$: found byte 0xff at 0, expected a record in UTF-8"),
        (b"[" * 100_000, "$: found "),
        (b"[]", "$: found a list, expected an object"),
        (b"{}", "$.format: found nothing, expected a string"),
    ):
        path.write_bytes(content)
        with pytest.raises(RecordError) as caught:
            check_file(path)
        assert str(caught.value).startswith(f"{path}: {message}")
        with pytest.raises(RecordError):
            records.load_record(path)
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "none.json")


def test_replaying_says_what_no_longer_holds(record: dict[str, Any]) -> None:
    def why(**changed: object) -> str:
        step = {**record["steps"][0], **changed}
        with pytest.raises(RecordError) as caught:
            records.from_record({**record, "steps": [step]}, source="R.json")
        return str(caught.value)

    assert why(rule="Rule9").startswith(
        "R.json: $.steps[0].rule: found 'Rule9', expected one of 42 known rules; a rule of "
    )
    assert why(at="7").startswith("R.json: $.steps[0]: summation_splitting at 7: ")
    assert "now results in another program" in why(after=record["start"])
    assert why(params={}).startswith("R.json: $.steps[0]: summation_splitting at 0: ")


def test_incomplete_record_is_refused() -> None:
    steps = derivation()
    with pytest.raises(ValueError, match=f"1 certificates for {len(steps.steps)} steps"):
        to_record(steps, [certify(steps.start, steps.start)])
    with pytest.raises(ValueError, match="version: names of the format itself"):
        to_record(steps, version=3)
    assert records.from_record(to_record(steps)) == steps


def test_the_checker_imports_neither_rules_nor_search() -> None:
    # The package's own __init__ offers everything; a bare one shows what the checker itself needs.
    code = (
        "import sys, types, importlib.util as u\n"
        "bare = types.ModuleType('einnet_explore')\n"
        "bare.__path__ = list(u.find_spec('einnet_explore').submodule_search_locations)\n"
        "sys.modules['einnet_explore'] = bare\n"
        "import einnet_explore.checker.record; print(*sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "einnet_explore.checker.record" in out
    assert not [name for name in out if name.startswith(("einnet_explore.rules", "einnet_explore.strategies"))]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_file_is_complete_or_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    path = tmp_path / "out.json"
    write_atomically(path, "before")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(type(error)) as caught:
            write_atomically(path, b"after")
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_files_have_the_rights_that_open_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "new", "x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new").chmod(0o600)
    write_atomically(tmp_path / "new", "y")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "no" / "file", "x")
    assert caught.value.filename == str(tmp_path / "no" / "file")
