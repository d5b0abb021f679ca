"""Rules and operators that are not the library's: values that sessions, searches, records and the checker take."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import einnet_explore as ee
import einnet_widgets
from einnet_explore.analysis.indices import substitute
from einnet_explore.checker.record import RecordError, check_file
from einnet_explore.cli import main
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Access, Apply, Const, Program, Scope, Tensor
from einnet_explore.rules import INTER_RULES, RULES, Rule
from einnet_explore.session.records import importable_name
from einnet_explore.session.session import Session
from einnet_explore.support.errors import RuleError
from tests.rules_kit import check_rule, refuses

DEPTHWISE = ee.Operator(
    "DepthwiseConv2d",
    "Y[n, c, h, w] = sum[r, s] X[n, c, sh*h + dh*r - ph : H, sw*w + dw*s - pw : W] * K[c, r, s]",
)
OPERATORS = (*ee.OPERATORS, DEPTHWISE)
MOBILE = ee.ops.depthwise_conv2d(N=1, H=8, W=8, C=4, R=3, S=3, stride=2, padding=1)
POOLED = ee.parse("tensor A[1, 4, 8, 8]\nY[n:1, c:4, h:7, w:7] = max[r:2, s:2] relu(A[n, c, h+r, w+s])")


def rewrite(scope: Scope, params: None = None) -> Scope:
    match scope:
        case Scope(reduce="max", summations=(_, *_), domain=(), body=Apply("relu", (inside,))):
            largest = replace(scope, body=inside, padding=(), value=0)
            outside = Apply("relu", (largest[scope.traversals],))
            return replace(scope, summations=(), reduce="sum", body=outside)
    raise ee.Refused(f"expected the max of a relu, found the {scope.reduce} of {scope.body!r}")


def propose(scope: Scope) -> list[None]:
    try:
        rewrite(scope)
    except ee.Refused:
        return []
    return [None]


MAX_OUTSIDE: Rule[None] = ee.scope_rule("max_outside", r"\max \varphi \mapsto \varphi \max", propose, rewrite)
OWN = (*RULES, *INTER_RULES, MAX_OUTSIDE)


def test_a_rule_of_ones_own_keeps_values_as_the_others_do() -> None:
    assert check_rule(MAX_OUTSIDE, POOLED) == 1


def test_a_session_applies_and_certifies_it() -> None:
    session = ee.explore(POOLED, rules=OWN)
    assert "max_outside" in {m.rule.name for m in session.rules(at="Y")}
    session.apply("max_outside", at="Y")
    assert session.check().ok
    with pytest.raises(ee.Refused, match="expected the max of a relu, found the sum of relu"):
        session.apply("max_outside", at="Y")
    with pytest.raises(LookupError, match="no rule is called 'max_outside'"):
        ee.explore(POOLED).apply("max_outside", at="Y")


def test_search_with_a_user_rule_finds_more_operators() -> None:
    def pools(rules: tuple[Rule[object], ...]) -> list[str]:
        run = ee.search(POOLED, max_depth=1, rules=rules, between=())
        assert all(certificate.ok for c in run.candidates for certificate in ee.check(c.derivation))
        return [e.via.operator for c in run.candidates for e in c.operators if e.via]

    assert pools(RULES) == []
    assert pools((*RULES, MAX_OUTSIDE)) == ["MaxPool2d"]


def test_an_operator_of_ones_own_is_matched_with_its_attributes_solved() -> None:
    assert ee.explore(MOBILE, operators=OPERATORS).table("DepthwiseConv2d").operator == DEPTHWISE
    run = ee.search(MOBILE, target="DepthwiseConv2d", operators=OPERATORS, max_depth=1)
    found = next(c for c in run.candidates if c.operators)
    (call,) = found.operators
    assert call.via is not None and call.via.operator == "DepthwiseConv2d"
    solved = dict(call.via.attributes)
    assert {k: solved[k] for k in ("sh", "dh", "ph", "H")} == {"sh": 2, "dh": 1, "ph": 1, "H": 8}
    assert certify(MOBILE, found.program).kind == "proved"
    assert run.why_refused("DepthwiseConv2d").startswith("DepthwiseConv2d applies, in ")


def test_unknown_targets_are_refused_with_the_operators_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown target 'DepthwiseConv2d', expected one of Matmul"):
        ee.search(MOBILE, target="DepthwiseConv2d")
    with pytest.raises(ValueError, match=r"unknown target 'x', expected one of .*DepthwiseConv2d$"):
        ee.search(MOBILE, target="x", operators=OPERATORS)


@pytest.mark.parametrize("name", ["own.eins", "own.json"])
def test_sessions_with_them_are_saved_loaded_and_checked(name: str, tmp_path: Path) -> None:
    session = ee.explore(POOLED, rules=OWN, operators=OPERATORS)
    session.apply("max_outside", at="Y")
    session.save(tmp_path / name)
    again = Session.load(tmp_path / name, rules=OWN, operators=OPERATORS)
    assert again.program == session.program and again.rule("max_outside") == MAX_OUTSIDE
    with pytest.raises(RecordError, match=r"found (the rule )?'max_outside', expected one of"):
        Session.load(tmp_path / name)


@pytest.mark.parametrize("branches", [False, True])
def test_a_session_with_them_prints_itself_as_python(branches: bool) -> None:
    session = ee.explore(POOLED, rules=OWN, operators=OPERATORS)
    session.apply("max_outside", at="Y")
    printed = session.script(branches)
    assert f"from {__name__} import MAX_OUTSIDE" in printed and "rules=(*RULES, *INTER_RULES, MAX_OUTSIDE,)" in printed
    names: dict[str, Any] = {}
    exec(printed, names)
    again = names["session"]
    assert again.program == session.program and again.known == session.known and again.operators == OPERATORS
    assert again.script(branches) == printed


def _swapped(names: tuple[str, ...]) -> Rule[tuple[int, ...]]:
    """A rule that swaps the operands of a sum or product, with parameters of these *names*, which say nothing."""

    def swap(scope: Scope, params: tuple[int, ...]) -> Scope:
        match scope.body:
            case Apply(op, (a, b)) if params == tuple(range(len(names))):
                return replace(scope, body=Apply(op, (b, a)))
        raise ee.Refused(f"found {params}")

    def encode(params: tuple[int, ...]) -> dict[str, Any]:
        return dict(zip(names, params, strict=True))

    def decode(_: Scope, given: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(given[name] for name in names)

    return ee.scope_rule("swap", "ab = ba", lambda _: [tuple(range(len(names)))], swap, encode, decode)


def test_without_an_explanation_the_refusals_of_the_proposals_are_one() -> None:
    def rewrite(scope: Scope, name: str) -> Scope:
        (extent,) = (x.extent for x in scope.summations if x.name == name)
        if extent % 2:
            raise ee.Refused(f"{name} has {extent} values, expected an even number")
        return scope

    halves: Rule[str] = ee.scope_rule(
        "halves", "", lambda scope: [x.name for x in scope.summations], rewrite, lambda name: {"summation": name},
        lambda _, params: str(params["summation"]),
    )  # fmt: skip
    program = ee.parse("tensor A[4, 5, 6]\nY[i:4] = sum[j:5, k:6] A[i, j, k]")
    assert [match.params for match in halves.matches(program, (0,))] == ["k"]
    session = ee.explore(ee.parse("tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, j]\nZ[i:4] = Y[i] + 1"), rules=(halves,))
    assert session.why_refused("halves", at="Y") == "j has 5 values, expected an even number"
    assert session.why_refused("halves", at="Z") == "halves proposes no parameters for this scope"


KEYWORDS, TAKEN = _swapped(("in", "class", "plain", "not a word")), _swapped(("at", "rule", "self", "program", "in"))


@pytest.mark.parametrize("rule", [KEYWORDS, TAKEN], ids=["keywords", "names of arguments"])
@pytest.mark.parametrize("branches", [False, True])
def test_rule_parameters_may_have_any_names(rule: Rule[object], branches: bool, tmp_path: Path) -> None:
    session = ee.explore(ee.ops.matmul(4, 5, 6), rules=(rule,))
    (match,) = rule.matches(session.program, (0,))
    session.apply(match)
    params = match.to_json()["params"]
    assert rule.match(session.program, (0,), **params) == match
    names: dict[str, Any] = {}
    exec(session.script(branches), names)
    assert names["session"].program == session.program != session.nodes[0].end
    session.save(tmp_path / "own.eins")
    assert Session.load(tmp_path / "own.eins", rules=(rule,)).program == session.program


def test_a_script_names_the_rules_that_a_search_brought_in() -> None:
    session = ee.explore(MOBILE, rules=RULES[:2], operators=ee.OPERATORS[:3])
    run = ee.search(MOBILE, target="Conv2d", max_depth=2)
    found = next(c for c in run.candidates if {s.match.rule for s in c.derivation.steps} - {*RULES[:2]})
    session.adopt(found.derivation)
    names: dict[str, Any] = {}
    exec(session.script(), names)
    assert ee.program_key(names["session"].program) == ee.program_key(session.program)


def test_a_rule_without_a_name_cannot_be_written_into_a_script() -> None:
    session = ee.explore(POOLED, rules=(replace(MAX_OUTSIDE, name="other"),))
    with pytest.raises(LookupError, match="<Rule other> has no name in any module: give it one"):
        session.script()


def test_a_script_imports_a_rule_from_its_module_rather_than_from_the_main_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for main_module in ("__main__", "__mp_main__"):
        module = ModuleType(main_module)
        module.X = MAX_OUTSIDE  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, main_module, module)
    assert importable_name(MAX_OUTSIDE)[0] == __name__


def test_the_checker_knows_no_rules_and_sees_a_false_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = ee.explore(POOLED, rules=OWN)
    session.apply("max_outside", at="Y")
    path = tmp_path / "record.json"
    session.save(path)
    with pytest.raises(RecordError, match=r"steps\[0\].rule: found 'max_outside', expected one of"):
        check_file(path)
    with pytest.raises(RecordError, match=r"needs show --rule max_outside, or ee\.Session\.load\(FILE, rules="):
        ee.load(path)
    capsys.readouterr()
    assert main(["show", str(path), "--rule", "max_outside"]) == 0
    assert f"# max_outside at 0\n{ee.text(session.program)}" in capsys.readouterr().out
    assert main(["check", str(path)]) == 2 and main(["check", str(path), "--rule", "max_outside"]) in (0, 3)
    assert check_file(path, rules=("max_outside",)).ok
    held = json.loads(path.read_text())
    held["steps"][0]["after"] = held["steps"][0]["after"].replace("relu(", "abs(")
    path.write_text(json.dumps(held))
    assert not check_file(path, rules=("max_outside",)).ok


def test_wrong_rule_has_a_false_certificate() -> None:
    def wrong(scope: Scope, params: None = None) -> Scope:
        return replace(scope, reduce="min")

    bad: Rule[None] = ee.scope_rule("bad", "", lambda _: [None], wrong)
    session: Session = ee.explore(POOLED, rules=(bad,))
    program: Program = session.apply("bad", at="Y")
    assert program != POOLED
    certificate = session.check()
    assert certificate.kind == "false" and certificate.counterexample


def _halved(scope: Scope, substituted: bool) -> Scope:
    first, *others = scope.summations
    if first.extent < 8:
        raise ee.Refused(f"{first.name} has {first.extent} values, expected 8 or more")
    half = replace(first, hi=first.hi // 2)
    body = substitute(scope.body, {first: half + 0}) if substituted else scope.body
    return replace(scope, summations=(half, *others), body=body)


def test_best_of_a_search_has_no_false_step_and_remarks_name_the_wrong_rule(tmp_path: Path) -> None:
    def halve(scope: Scope, params: None = None) -> Scope:
        return _halved(scope, True)

    half: Rule[None] = ee.scope_rule("half", "", lambda _: [None], halve)
    program = ee.ops.matmul(4, 5, 8)
    run = ee.search(program, rules=(*RULES, half), max_depth=3)
    cheapest = min(run.candidates, key=lambda c: c.rank)
    assert run.best and run.best.rank > cheapest.rank and run.verdict(cheapest) == "false"
    assert certify(program, run.best.program).kind == "proved" and run.find("Matmul", k=8)
    with pytest.raises(LookupError, match="rule half makes a false step"):
        run.find("Matmul", k=4)
    assert any(
        "rule half makes a false step at 0: element [0, 0]" in line and "A[0, 4]" in line for line in run.remarks()
    )
    assert run.report()["best"] == run.candidates.index(run.best)
    false = run.false_steps()
    assert cheapest.state in false and run.best.state not in false and len(false) < len(run.candidates)
    assert "A[0, 4]" in run.why_false(false[cheapest.state])
    assert run.table().rows[0][0] == str(run.best.state) and run.reachable_seconds(cheapest.program) is None
    only = ee.search(program, rules=(*RULES, half), max_depth=3, must_use=["half"])
    assert only.candidates and only.best is None and "rule half" in only.remarks()[-1]
    with pytest.raises(ValueError, match="no candidate, so there is nothing to save; rule half makes a false step"):
        only.save(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            lambda scope: _halved(scope, False),
            r"iterator k is not bound: found k in \[0, 8\), expected one of m in \[0",
        ),
        (lambda _: None, "expected a Scope, found None"),
        (lambda scope: scope.nonsense, "AttributeError: 'Scope' object has no attribute 'nonsense'"),
        (lambda scope: replace(scope, body=3), "the body has 3, expected an Access, an Apply, a Const or a Compare"),
        (lambda scope: replace(scope, traversals=scope.traversals[:1]), "iterator n is not bound"),
        (lambda scope: replace(scope, body=Const(1), traversals=()), r"output Y has the shape \(\), expected \(4, 5\)"),
        (lambda scope: replace(scope, body=Tensor("Q", (4,))[scope.traversals[:1]]), "tensor Q is no input"),
        (
            lambda scope: replace(scope, body=Tensor("A", (4,))[scope.traversals[:1]]),
            r"A has the shape \(4, 8\), found",
        ),
        (
            lambda scope: replace(scope, body=Tensor("A", (4, 8))[scope.traversals[:1]]),
            "A has 2 dimensions, found 1 ind",
        ),
        (lambda scope: replace(scope, body=Access(3, ())), "an Access reads 3, expected a Tensor"),
    ],
)
def test_an_ill_formed_result_of_a_rule_is_an_error_with_its_name_and_place(
    made: Callable[[Scope], Any], why: str
) -> None:
    def law(scope: Scope, params: None = None) -> Scope:
        return made(scope)  # type: ignore[no-any-return]

    bad: Rule[None] = ee.scope_rule("bad", "", lambda _: [None], law, explain=lambda _: "")
    session = ee.explore(ee.ops.matmul(4, 5, 8), rules=(bad,))
    with pytest.raises(RuleError, match=f"^rule bad at 0: .*{why}"):
        session.apply("bad", at="Y")
    assert session.here == 0
    shown = einnet_widgets.Explorer(session).rules
    assert "bad" not in {row["rule"] for row in shown["matches"]} and shown["refusals"][0]["why"].startswith("rule bad")
    with pytest.raises(RuleError, match=f"^rule renamed at 0: .*{why}"):
        ee.search(session.program, rules=(*RULES, replace(bad, name="renamed")), max_depth=1)


def test_a_rule_with_other_arguments_no_rule_and_two_of_one_name_are_errors() -> None:
    with pytest.raises(TypeError, match=r"^bad: rewrite takes \(scope\), expected \(scope, parameters\)$"):
        ee.scope_rule("bad", "", lambda _: [None], lambda scope: scope)  # type: ignore[misc,arg-type]
    with pytest.raises(TypeError, match=r"^bad: propose takes \(\), expected \(scope\)$"):
        ee.scope_rule("bad", "", lambda: [None], rewrite)  # type: ignore[misc,arg-type]
    twin = replace(MAX_OUTSIDE)
    for use in (ee.explore, ee.search):
        with pytest.raises(TypeError, match=r"rules: found <function rewrite at .*>, expected rules, such as"):
            use(POOLED, rules=(*RULES, rewrite))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="two rules are called 'max_outside', expected different names"):
            use(POOLED, rules=(*RULES, MAX_OUTSIDE, twin))


def test_a_record_of_ones_own_operator_is_checked_with_its_expression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ee.parse("tensor A[7]\ntensor B[5]\nY[i:7, j:5] = B[j] * A[i]")
    outer = ee.Operator("Outer", "Y[m, n] = A[m] * B[n]")
    run = ee.search(program, target="Outer", operators=(*ee.OPERATORS, outer))
    (found,) = (c for c in run.candidates if c.operators)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(run.record(found)))
    assert main(["check", str(path)]) == 1 and "--operator 'Outer: EXPRESSION'" in capsys.readouterr().out
    assert main(["check", str(path), "--operator", "Outer: Y[m, n] = A[m] * B[n]"]) == 0
    assert main(["check", str(path), "--operator", "Outer: Y[m, n] = A[m] + B[n]"]) == 1
    capsys.readouterr()
    assert main(["check", str(path), "--operator", "Outer"]) == 2
    assert "found no name before a colon" in capsys.readouterr().err
    with pytest.raises(ValueError, match="found k in the index k, expected one of m, n"):
        ee.Operator("Wrong", "Y[m, n] = A[m] * B[n] * C[k]")


def test_the_rule_in_the_documentation_is_short_and_keeps_values(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent / "docs" / "architecture.md"
    (block,) = (b for b in page.read_text().split("```python\n")[1:] if "scope_rule(" in b)
    code = dedent(block.split("```")[0])
    assert len(code.splitlines()) < 30
    (tmp_path / "reversal.py").write_text(code)
    module = run_path(str(tmp_path / "reversal.py"))
    rule = module["REVERSAL"]
    assert check_rule(rule, ee.ops.conv2d(N=1, H=4, W=4, C=2, F=2, R=3, S=3, padding=1)) == 3
    session = ee.explore(ee.ops.matmul(4, 5, 6), rules=(rule,))
    session.apply("reversal", at="0", summation="k")
    assert session.check().kind == "proved"
    refuses(rule, ee.ops.matmul(4, 5, 6), (0,), "expected one of {k} and no domain, found m", summation="m")
