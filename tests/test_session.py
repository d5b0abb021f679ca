"""Sessions: steps by hand, a tree that loses nothing, refusals in words, scripts and records that lead back."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.checker.record import RecordError, check_file
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import EXPRESSION_SPLITTING, STORAGE_LAYOUT, Derivation, Refused
from einnet_explore.session.records import from_record
from einnet_explore.session.session import Session
from einnet_explore.syntax import text
from einnet_explore.viz import tables
from einnet_explore.viz.tables import ResultTable
from tests.sessions_kit import by_hand

CONV = """
tensor A[1, 5, 4, 3] pad [0, 1, 1, 0]
tensor K[3, 3, 2, 3] weight
Y[n:1, h:5, w:4, f:2] = sum[c:3, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
"""


def session_of(source: str = CONV) -> Session:
    return ee.explore(ee.parse(source))


def replayed(script: str, program: Program) -> Session:
    names: dict[str, Any] = {"ee": ee, "program": program}
    exec(script, names)
    assert isinstance(names["session"], Session)
    return names["session"]


def test_by_hand_leads_to_a_product_and_an_offset_reduce() -> None:
    session = by_hand(session_of())
    assert [e.via.operator for e in session.program.equations if e.via] == ["View", "View", "Matmul", "eOperator"]
    assert {c.kind for c in session.certificates()} == {"proved"} == {session.check().kind}


def test_script_replays_to_the_same_program() -> None:
    session = by_hand(session_of())
    again = replayed(session.script(), session.nodes[0].end)
    assert text(again.program) == text(session.program)
    assert ee.program_key(again.program) == ee.program_key(session.program)


@settings(max_examples=15)
@given(st.data())
def test_any_walk_replays_from_its_script_and_its_record(data: st.DataObject) -> None:
    session = session_of()
    for _ in range(data.draw(st.integers(0, 3))):
        legal = session.rules()
        if not legal:
            break
        session.apply(legal[data.draw(st.integers(0, len(legal) - 1))])
    assert replayed(session.script(), session.nodes[0].end).program == session.program
    assert text(from_record(session.record()).end) == text(session.program)


def test_undo_and_redo_walk_the_same_way() -> None:
    session = by_hand(session_of())
    end, programs = session.here, []
    while session.can_undo:
        programs.append(session.program)
        session.undo()
    assert session.program == session.nodes[0].end and not session.can_undo
    assert session.undo() == session.program  # at the start it does nothing
    while session.can_redo:
        session.redo()
        assert session.program == programs.pop()
    assert programs == [] and session.here == end
    assert session.redo() == session.program and session.here == end


def test_undone_steps_remain_as_a_branch() -> None:
    session = session_of()
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    left = session.here
    session.undo()
    session.apply("summation_splitting", at="Y", outer=["c"])
    assert not session.can_redo  # a new step, so redo would lead nowhere
    assert session.parents == [-1, 0, 0]
    right = session.program
    assert session.goto(left) != right
    assert [each.match.params.outer[0].name for each in session.derivation.steps] == ["r"]
    with pytest.raises(IndexError, match="node 3: expected 0 to 2"):
        session.goto(3)
    with pytest.raises(IndexError, match="node -1"):
        session.goto(-1)


def test_repeated_step_adds_no_node() -> None:
    session = session_of()
    first = session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.undo()
    session.apply("summation_splitting", at="Y", outer=["c"])
    session.undo()
    assert session.apply("summation_splitting", at="Y", outer=["r", "s"]) == first
    assert (session.here, session.parents, session.can_redo) == (1, [-1, 0, 0], False)


def test_adopt_reuses_existing_nodes_and_adds_the_rest() -> None:
    session = by_hand(session_of())
    derivation, nodes = session.derivation, len(session.nodes)
    other = session_of()
    other.apply("summation_splitting", at="Y", outer=["c"])
    other.adopt(derivation)
    assert other.program == session.program and other.parents[:3] == [-1, 0, 0]
    assert len(other.nodes) == nodes + 1
    other.adopt(derivation)
    assert len(other.nodes) == nodes + 1
    with pytest.raises(ValueError, match="starts from another program"):
        session_of("tensor A[3]\nY[i:3] = A[i]").adopt(derivation)


def test_a_search_from_here_is_adopted_here() -> None:
    session = session_of()
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    run = session.search(target="Matmul", max_depth=1)
    assert run.best is not None
    session.adopt(run.best.derivation)
    assert session.program == run.best.program and session.derivation.steps[0].match.rule.name == "summation_splitting"
    assert len(session.derivation.steps) == 1 + len(run.best.derivation.steps)
    assert session.check().ok
    assert replayed(session.script(), session.nodes[0].end).program == session.program


def test_session_is_saved_and_loaded(tmp_path: Path) -> None:
    session = by_hand(session_of())
    session.save(tmp_path / "conv.json", case="conv")
    assert check_file(tmp_path / "conv.json").kind == "proved"
    again = Session.load(tmp_path / "conv.json")
    assert text(again.program) == text(session.program)
    assert [d.steps[-1].match.to_json() for d in again.nodes[1:]] == [
        step.match.to_json() for step in session.derivation.steps
    ]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(RecordError, match=r"bad\.json: \$\.format: found nothing"):
        Session.load(tmp_path / "bad.json")
    with pytest.raises(OSError, match="none"):
        Session.load(tmp_path / "none.json")


def test_paths_begin_with_a_number_or_an_equation_name() -> None:
    session = session_of()
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    assert session.path("Y.0") == session.path("0.0") == session.path((0, 0)) == (0, 0)
    assert session.path(0) == (0,)
    assert [m.to_json() for m in session.rules("Y.0")] == [m.to_json() for m in session.rules("0.0")]
    for wrong, said in (("1", "equation"), ("Y.1", "1 accesses"), ("0.0.0", "tensor A")):
        with pytest.raises(LookupError, match=said):
            session.path(wrong)
    with pytest.raises(ValueError, match="path 'Z'"):
        session.rules("Z")


def test_equation_names_may_be_numbers_or_share_a_prefix() -> None:
    """Exporters call values "0", "1", …: a path in numbers, as scripts write it, is one all the same."""
    session = session_of("""
tensor A[4, 6]
tensor B[6, 5]
"1"[i:4, j:5] = A[i, j] + 1
"0"[i:4, j:5] = sum[k:6] A[i, k] * B[k, j] + A[i, j]
a[i:4] = sum[k:6] {[i:4, k:6] relu(A[i, k])}[i, k]
"a.0"[i:4] = 2 * a[i]
""")
    assert [session.path(at) for at in ("0", "1", "a", "a.0", "2.0")] == [(0,), (1,), (2,), (3,), (2, 0)]
    session.apply(session.rules("1")[0])
    assert replayed(session.script(), session.derivation.start).program == session.program


NAMES = ["", "a b", "x\u2028y", "\x7f", "\ufffe", "a\nb", 'a"""b', "a\\", "{", "$x$", "<b>&", "名", "\0"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name_is_drawn_saved_and_written_as_a_script(name: str, tmp_path: Path) -> None:
    given, made = json.dumps(f"{name}.in"), json.dumps(name)
    session = session_of(f"tensor {given}[3]\n{made}[i:3] = 2 * {given}[i]")
    session.apply("eoperator_generation")
    for path in (tmp_path / "x.json", tmp_path / "x.eins"):
        session.save(path)
        assert Session.load(path).program == session.program
    assert replayed(session.script(), session.derivation.start).program == session.program
    for drawn in (session.graph().svg, session.tree().svg, session.formula().figure().svg):
        ElementTree.fromstring(drawn)


def test_a_refused_step_changes_nothing_and_says_why() -> None:
    session = session_of()
    with pytest.raises(Refused, match=r"eoperator_generation at 0: intensity [\d.]+ FLOP/element is not below"):
        session.apply("eoperator_generation", at="Y")
    with pytest.raises(Refused, match=r"summation_splitting at 0 has \d+ legal matches, give parameters: .*outer"):
        session.apply("summation_splitting", at="Y")
    with pytest.raises(Refused, match=r"operator_matching at 0 has 0 legal matches with .*'Pool'"):
        session.apply("operator_matching", at="Y", operator="Pool")
    with pytest.raises(Refused, match="both groups need an iterator"):
        session.apply("summation_splitting", at="Y", outer=[])
    with pytest.raises(LookupError, match="no rule is called 'split': there are summation_splitting, "):
        session.apply("split", at="Y")
    assert session.here == 0 and len(session.nodes) == 1


def test_every_rule_either_matches_or_says_why_not() -> None:
    session = by_hand(session_of())
    for node in range(len(session.nodes)):
        session.goto(node)
        for match in session.rules():
            assert certify(session.program, match.apply(session.program).after).ok
        if any(e.via is None for e in session.program.equations):
            legal = {m.rule.name for m in session.rules("Y")}
            refused = {r.rule: r.why for r in session.refusals("Y")}
            assert legal | set(refused) == {rule.name for rule in session.known} and not legal & set(refused)
            assert all(why and "parameter" not in why for why in refused.values())


def test_observers_are_called_until_they_unsubscribe() -> None:
    session, heard = session_of(), []
    leave = session.subscribe(lambda s: heard.append(s.here))
    session.apply("summation_splitting", at="Y", outer=["c"])
    session.undo()
    session.redo()
    session.goto(0)
    leave()
    session.redo()
    session.goto(1)
    assert heard == [1, 0, 1, 0]


def test_a_session_shows_itself() -> None:
    session = by_hand(session_of())
    shown = session._repr_mimebundle_()
    assert set(shown) == {"text/latex", "image/svg+xml", "text/plain"}
    assert shown["text/plain"] == text(session.program).rstrip("\n")
    assert r"E_{7}" in shown["text/latex"] and r"\textcolor{teal}" in shown["text/latex"]
    assert repr(session) == "<Session at node 7 of 8, 7 steps from the start>"
    table = session.history(certificates=True)
    assert [row[-1] for row in table.rows] == ["", *["proved"] * 7]
    assert "summation_splitting" in table._repr_html_() and "r, s" in repr(table)
    assert ee.show(session.derivation)._repr_mimebundle_()["text/latex"].startswith("\\begin{align*}")


def test_scope_is_shown_without_a_name() -> None:
    session = session_of()
    scope = session.program.scope_at((0,))
    bundle = ee.show(scope)._repr_mimebundle_()
    assert bundle["text/plain"] == text(scope) and "=" not in bundle["text/plain"]
    assert "Y" not in bundle["text/latex"] and r"\sum" in bundle["text/latex"] and "<svg" in bundle["image/svg+xml"]


def test_show_returns_a_value_that_shows_itself() -> None:
    session = session_of()
    run = ee.search(session.program, target="Matmul", max_depth=1)
    for it in (session, run, session.history(), session.graph(), session.check()):
        assert ee.show(it) is it


@pytest.mark.parametrize("it", [7, None, "Y[i:4] = A[i]", ee.Session, [ee.ops.matmul(4, 5, 6)]])
def test_show_refuses_a_value_that_cannot_be_shown(it: object) -> None:
    with pytest.raises(TypeError, match=rf"cannot show .* of type {type(it).__name__}: expected a Program, Scope"):
        ee.show(it)


def test_parameters_are_separated_by_semicolons_and_values_by_commas() -> None:
    cut = EXPRESSION_SPLITTING.match(ee.ops.matmul(4, 5, 6), (0,), iterator="m", cuts=[1, 2])
    assert tables.format_parameters(cut) == "iterator = m; cuts = 1, 2"


def test_verdicts_and_their_certificates_show_the_same() -> None:
    conv = ee.parse(CONV)
    for changed, kind in (("r+h-1", "proved"), ("h+1-r", "different")):
        verdict = ee.equal(conv, ee.parse(CONV.replace("h+r-1", changed)))
        with pytest.warns(DeprecationWarning, match="write ee.equal"):
            certificate = ee.certify(conv, ee.parse(CONV.replace("h+r-1", changed)))
        assert isinstance(verdict, ee.Verdict) and verdict.certificate == certificate
        assert verdict.kind == kind and certificate.kind in (kind, "false") and certificate.why
        assert bool(verdict) == bool(certificate) == verdict.ok == certificate.ok == (kind == "proved")
        for shown, why in (
            (verdict._repr_mimebundle_()["text/html"], verdict.why),
            (certificate._repr_html_(), certificate.why),
        ):
            assert ("✓ proved" if verdict else "✗ ") in shown and why in shown


def test_matches_and_refusals_are_displayed_as_tables() -> None:
    session = session_of()
    matches, refusals = session.rules("Y"), session.refusals("Y")
    assert matches[0].rule.name == "summation_splitting" and isinstance(matches, tuple)
    assert len(matches._repr_mimebundle_()["text/html"].split("<tr>")) == len(matches) + 2
    assert [r.rule for r in refusals] == [row[0] for row in refusals.table().rows]
    assert [r for r in session.refusals() if r.at == (0,)] == list(refusals)
    assert "no legal match" in repr(by_hand(session_of()).rules())


def test_a_run_shows_its_candidates_and_its_tree() -> None:
    run = ee.search(
        ee.parse("tensor A[4, 3]\ntensor B[3, 5]\nY[i:4, j:5] = sum[k:3] A[i, k] * B[k, j]"),
        target="Matmul",
        max_depth=1,
    )
    shown = run._repr_mimebundle_()
    assert "Matmul(m=4, n=5, k=3)" in shown["text/plain"] and "proved" in shown["text/html"]
    assert f"{len(run.search.states)} states" in shown["text/plain"]
    assert run.best is not None
    assert f"the way to state {run.best.state} is thick" in run.tree().svg
    assert "Run: " in repr(run)


def test_derivation_is_proved_by_its_steps_if_not_by_its_ends() -> None:
    # Tensors of the same names lie in other layouts at the end, between functions that are no polynomials.
    start = ee.parse("""
tensor S[4, 6]
tensor V[6, 3]
E[i:4, j:6] = exp(S[i, j])
D[i:4] = sum[j:6] E[i, j]
P[i:4, j:6] = E[i, j] / D[i]
Y[i:4, n:3] = sum[j:6] P[i, j] * V[j, n]
output Y
""")
    turned = {"b": "j", "a": "i"}
    derivation = Derivation(start)
    for n, phi in enumerate((turned, {"a": "i//2", "b": "i%2"}, turned)):
        derivation = derivation.then(STORAGE_LAYOUT.match(derivation.end, (n,), phi=phi))
    session = ee.explore(start)
    session.adopt(derivation)
    assert certify(start, derivation.end).kind == "exact"
    assert (session.check().kind, session.check().method) == ("proved", "composition")


def test_rules_name_the_further_rules_that_apply_and_list_them_on_request() -> None:
    program = ee.parse(
        "tensor Q[6, 4]\ntensor K[6, 4]\ntensor V[6, 4]\nS[i:6, j:6] = sum[d:4] Q[i, d] * K[j, d]\n"
        "Y[i:6, e:4] = sum[j:6] S[i, j] * V[j, e]\noutput Y"
    )
    session = ee.explore(program)
    session.apply("expression_fusion", at="Y")
    usual, every = session.rules(), session.rules(further=True)
    names = {m.rule.name for m in every[len(usual) :]}
    assert every[: len(usual)] == usual and {"contraction_order", "expression_extraction"} <= names
    assert not names & {rule.name for rule in session.known} and "contraction_order" in repr(usual).split("\n")[-1]
    assert "further" not in repr(every)
    node, *lines, matching = str(session).split("\n")
    assert node == repr(session) and "\n".join(lines) == str(session.program) == str(session.formula())
    assert matching == "rules() lists the matches of traversal_merging, operator_matching"
    assert "dead_equation" in {r.rule for r in session.refusals(further=True)} - {r.rule for r in session.refusals()}
    session.apply(next(m for m in every if m.rule.name == "contraction_order"))
    assert session.check().kind == "proved"


def test_find_returns_the_best_candidate_with_a_call() -> None:
    run = ee.search(ee.ops.matmul(4, 6, 8), operators=["matmul"], rules=["summation_splitting"])
    found = run.find("Matmul", m=4, n=6)
    assert found == run.best
    with pytest.raises(LookupError, match=r"no candidate calls Matmul\(m=5\), found Matmul\(b=1, m=4"):
        run.find("Matmul", m=5)
    graph = run.to_networkx()
    assert set(graph) == set(range(len(run.search.states))) and graph.has_edge(0, found.state)


def test_the_candidates_of_a_run_are_a_data_frame() -> None:
    pytest.importorskip("pandas")
    run = ee.search(ee.ops.matmul(4, 6, 8), operators=["matmul"], rules=["summation_splitting"])
    frame = run.to_pandas()
    assert list(frame.columns) == ["state", "operators", "eoperators", "steps", "seconds", "found", "certificate"]
    assert (frame.found <= run.seconds).all() and session_of().rules().to_pandas()["rule"][0] == "summation_splitting"
    assert list(frame.state) == [c.state for c in sorted(run.candidates, key=lambda c: c.rank)]
    assert frame.seconds.is_monotonic_increasing and set(frame.certificate) == {"proved"}
    assert frame.operators.str.contains(r"Matmul\(b=1, m=4, n=6").any()


def test_a_data_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = ee.search(ee.ops.matmul(4, 6, 8), max_depth=0)
    for table in (run, run.table(), session_of().rules(), ResultTable("name", "title", ("a",), ((1.0,),))):
        with pytest.raises(ImportError, match="data frames need pandas: pip install pandas"):
            table.to_pandas()


def test_tables_are_data_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = SimpleNamespace(DataFrame=lambda rows, columns: (columns, rows))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    run = ee.search(ee.ops.matmul(4, 6, 8), max_depth=0)
    columns, rows = run.to_pandas()
    assert columns[:2] == ["state", "operators"] and [row[4] for row in rows] == sorted(
        c.seconds for c in run.candidates
    )
    assert run.table().to_pandas()[0] == list(run.table().head)
    assert len(session_of().rules().to_pandas()[1]) == len(session_of().rules())
    assert ResultTable("name", "title", ("a",), ((1.5,),)).to_pandas() == (["a"], [(1.5,)])


def test_sessions_take_names_labels_and_clean_ups() -> None:
    conv = ee.ops.conv2d(H=6, W=5, C=4, F=8, R=3, S=3, padding=1)
    session = ee.explore(conv, rules=["summation_splitting", "variable_substitution", *ee.RULES[2:5]])
    assert [rule.name for rule in session.known[:2]] == ["summation_splitting", "variable_substitution"]
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply(session.rules(at="Y.0")[0])
    session.clean()
    assert [step.match.rule.name for step in session.derivation.steps[2:]] == [
        "traversal_merging", "boundary_relaxing", "boundary_tightening",
    ]  # fmt: skip
    assert session.check().kind == "proved"
    assert session.goto("E0") == conv
    with pytest.raises(ValueError, match="node 'Y': expected a label such as 'E7'"):
        session.goto("Y")
    with pytest.raises(LookupError, match="no rule is called 'splitting'"):
        ee.explore(conv, rules=["splitting"])


def test_public_names_are_all_that_completion_offers() -> None:
    assert dir(ee) == sorted(ee.__all__)
