"""Sessions beyond steps: branches, comparison, saved trees, tables, front ends, measurements."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.checker.record import RecordError
from einnet_explore.operators.library import OPERATORS
from einnet_explore.session import candidate_benchmark as measuring
from einnet_explore.session import faces
from einnet_explore.session.candidate_benchmark import bench
from einnet_explore.session.session import Session
from einnet_explore.support.errors import BackendError

CONV = ee.ops.conv2d(N=1, H=5, W=4, C=3, F=2, R=3, S=3, padding=1)


def branched() -> Session:
    """Two ways from the first step, and the reader on the first of them."""
    session = ee.explore(CONV)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.goto(1)
    session.apply("summation_splitting", at="Y", outer=["r"])
    session.goto(2)
    return session


def tree_of(session: Session) -> list[Any]:
    return [session.here, session.parents, [ee.text(d.end) for d in session.nodes]]


@settings(max_examples=10)
@given(st.data())
def test_any_tree_replays_from_its_script_and_its_file(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    session = ee.explore(CONV)
    for _ in range(data.draw(st.integers(0, 4))):
        session.goto(data.draw(st.integers(0, len(session.nodes) - 1)))
        legal = session.rules()
        if legal:
            session.apply(legal[data.draw(st.integers(0, len(legal) - 1))])
    session.goto(data.draw(st.integers(0, len(session.nodes) - 1)))
    names: dict[str, Any] = {}
    exec(session.script(branches=True), names)
    assert tree_of(names["session"]) == tree_of(session)
    path = tmp_path_factory.mktemp("tree") / "it.eins"
    session.save(path)
    again = ee.load(path)
    assert isinstance(again, Session) and tree_of(again) == tree_of(session)


def test_script_of_a_tree_with_duplicate_nodes_ends_at_the_current_one() -> None:
    session = branched()
    ends = [derivation.end for derivation in session.nodes]
    # What applying a step anew once made: a twin of the first step, and a way on from it.
    session.nodes += [session.nodes[1], session.nodes[2], session.nodes[3]]
    session.parents += [0, 4, 4]
    for here, stands in ((4, 1), (5, 2), (6, 3), (3, 3), (0, 0)):
        session.here = here
        names: dict[str, Any] = {}
        exec(session.script(branches=True), names)
        again = names["session"]
        assert (again.here, again.parents, [d.end for d in again.nodes]) == (stands, [-1, 0, 1, 1], ends)


def test_a_script_needs_nothing_but_itself() -> None:
    session = branched()
    names: dict[str, Any] = {}
    exec(session.script(), names)
    assert names["session"].program == session.program and len(names["session"].nodes) == 3
    assert ee.program_key(names["program"]) == ee.program_key(CONV)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(version=9), "expected 'einnet-explore session' version 1"),
        (lambda d: d.pop("start"), r"\$: 'start' is missing"),
        (lambda d: d["steps"][0].pop("rule"), r"steps\[0\]: 'rule' is missing"),
        (lambda d: d["steps"][1].update(parent=7), r"steps\[1\].parent: found 7, expected 0 to 1"),
        (lambda d: d["steps"][1].update(rule="split"), r"steps\[1\]: found the rule 'split'"),
        (lambda d: d["steps"][0]["params"].update(outer=["x"]), r"steps\[0\]: .*x"),
        (lambda d: d["steps"][0].update(at="4"), r"steps\[0\]: .*equation"),
        (lambda d: d["steps"][0].update(params=[1]), r"steps\[0\]: "),
        (lambda d: d["steps"][0].update(rule="boundary_tightening", params={"ranges": [1]}), r"steps\[0\]: "),
        (lambda d: d.update(here=-1), r"here: found -1, expected 0 to 3"),
        (lambda d: d.update(here=0.5), r"here: found 0.5, expected 0 to 3"),
    ],
)
def test_a_file_that_is_no_session_says_where(tmp_path: Path, change: Any, said: str) -> None:
    import json

    path = tmp_path / "it.eins"
    branched().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=said):
        Session.load(path)


def test_kept_candidate_becomes_a_node() -> None:
    session = ee.explore(CONV)
    run = session.search(target="Matmul", max_depth=2)
    assert session.runs == [run]
    best = run.best
    assert best is not None
    node = session.keep(best)
    assert session.here == 0 and session.nodes[node].end == best.program
    assert session.keep(best.derivation) == node
    assert session.goto(best) == best.program and session.here == node
    session.goto(0)
    session.apply("summation_splitting", at="Y", outer=["c"])
    assert session.goto(run.search.derivation(best.state)) == best.program  # found below the start, not below here
    with pytest.raises(ValueError, match="another program than any node"):
        session.keep(ee.explore(ee.parse("tensor A[3]\nY[i:3] = A[i]")).derivation)


def test_rules_can_be_forbidden() -> None:
    session = ee.explore(CONV)
    run = session.search(max_depth=2, rules=["summation_splitting"])
    used = {m.rule.name for s in run.search.states for m in s.matches}
    assert used == {"summation_splitting", "operator_matching", "eoperator_generation"}  # and what ends a derivation


@pytest.mark.parametrize("forbidden", ["traversal_merging", "boundary_tightening", "boundary_relaxing"])
def test_clean_ups_can_be_forbidden_too(forbidden: str) -> None:
    session = ee.explore(CONV)

    def used(*without: str) -> set[str]:
        names = [rule.name for rule in ee.RULES if rule.name not in without]
        run = session.search(target="Matmul", max_depth=2, rules=names)
        return {m.rule.name for s in run.search.states for m in s.matches}

    assert forbidden in used()
    assert forbidden not in used(forbidden)
    with pytest.raises(LookupError, match="no rule is called 'split'"):
        session.search(rules=["split"])


def test_two_nodes_are_compared() -> None:
    session = branched()
    pair = session.compare(0, 2)
    assert not pair.same and pair.certificate.kind == "proved" and pair.seconds[0] != pair.seconds[1]
    assert session.compare(2, 2).same
    assert "different programs; proved" in repr(pair) and "#2" in pair._repr_mimebundle_()["text/html"]
    assert session.compare(1, 3).changed == (((0,),), ((0,),))
    assert session.compare(1, 2).changed == (((0, 0),), ((0,), (1,), (2,), (3, 0)))
    there = session.compare(2, 3)
    assert [step.partition(" at ")[0] for step in there.steps] == ["back: operator matching", "summation splitting"]
    assert there.levels == ("reassociate", "reassociate") and session.compare(0, 0).levels[0] == "exact"
    old, new = pair.changed_tokens
    assert old and new and session.compare(2, 2).changed_tokens == ([], [])
    html = pair._repr_mimebundle_()["text/html"]
    assert html.count("data:image/svg+xml") == 2 and "<mark>" in html and "from #0 to #2" in html
    for wrong in ((0, 9), (-1, 0)):
        with pytest.raises(IndexError, match="expected 0 to 3"):
            session.compare(*wrong)
    run = session.search("Matmul", max_depth=1, budget=None)
    assert run.best is not None and session.compare(run.best, session.here).certificate.kind == "proved"
    with pytest.raises(TypeError, match="found None, expected a node, a candidate or a derivation"):
        session.compare(None, 0)  # type: ignore[arg-type]


def test_values_that_are_no_program_budget_or_option_are_named() -> None:
    for call in (ee.explore, ee.search):
        with pytest.raises(TypeError, match=r"found str, expected a program: ee\.parse reads a text"):
            call("tensor A[3]")  # type: ignore[operator]
    with pytest.raises(TypeError, match="found the option 'depth' of a search, expected one of strategy, max_depth"):
        ee.search(CONV, depth=2)
    with pytest.raises(ValueError, match="budget '30s': expected 0 or more seconds"):
        ee.search(CONV, budget="30s")  # type: ignore[arg-type]


def test_certificates_are_found_once() -> None:
    session = branched()
    assert session.known_certificates() == {}
    first = session.certificate(1)
    assert session.certificate(1) is first and session.known_certificates() == {1: first}
    assert session.certificates()[0] is first and session.way() == (0, 1, 2) and session.way(3) == (0, 1, 3)
    for wrong in (0, 9):
        with pytest.raises(IndexError, match=f"node {wrong}: expected 1 to 3"):
            session.certificate(wrong)


def test_labels_name_nodes_by_number_and_by_steps() -> None:
    session = branched()
    assert [session.node(label) for label in ("#3", "E0", "E1", "E2")] == [3, 0, 1, 2] and session.here == 2
    session.goto("#3")
    assert session.node("E2") == 3
    session.goto("E1")
    with pytest.raises(ValueError, match="node 'E2': expected one of #2, #3"):
        session.goto("E2")
    for label, said in (("#4", "node 4: expected 0 to 3"), ("E3", "node E3: expected E0 to E2")):
        with pytest.raises(IndexError, match=said):
            session.goto(label)
    assert session.name(3) == "#3" and session.here == 1


def test_the_table_of_a_scope_against_an_operator() -> None:
    session = ee.explore(ee.ops.conv2d(N=2, H=5, W=4, C=3, F=2, R=3, S=3, padding=1))
    fits = session.table("Conv2d")
    assert fits.distance is not None and fits.distance.total == 0 and fits.why == ""
    assert dict(fits.iterators)["r"] == ("r",) and fits.tensors[-1] == fits.operator.pattern.output
    assert session.table().operator in OPERATORS and session.table().distance is not None
    far = session.table("Matmul")
    assert far.distance is not None and far.distance.total > 0 and "✗" in repr(far)
    relu = ee.explore(ee.parse("tensor A[4]\nY[i:4] = relu(A[i])")).table("Matmul")
    assert relu.distance is None and "cannot be compared" in repr(relu)
    with pytest.raises(ValueError, match="unknown target 'Fft'"):
        session.table("Fft")
    with pytest.raises(LookupError, match=r"path 0\.0: step 1 leads to tensor A, not to a scope"):
        session.table("Matmul", at="Y.0")
    with pytest.raises(LookupError, match=r"path 0\.7: step 1 is 7, the body has 2 accesses"):
        session.table("Matmul", at="Y.7")


def test_html_page_without_a_front_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def load(self) -> None:
            loaded.append(1)

    loaded: list[int] = []
    monkeypatch.setattr(faces, "_faces", [])
    monkeypatch.setattr(faces, "entry_points", lambda group: [Installed()] if group == faces.FACE_GROUP else [])
    with pytest.raises(ValueError, match=r"no front end is installed, .*.\[notebook\]"):
        ee.explore(CONV).to_html(tmp_path / "page.html")
    assert loaded and not list(tmp_path.iterdir())

    class Plain:
        def page(self, session: Session, title: str) -> str:
            return f"{title}: {session.here}"

    faces.register_face(Plain())
    ee.explore(CONV).to_html(tmp_path / "page.html", title="conv")
    assert (tmp_path / "page.html").read_text() == "conv: 0"


def results(it: Iterable[Any]) -> list[Any]:
    return list(it)


def test_programs_are_measured_in_turn() -> None:
    session = branched()
    programs = {"start": session.nodes[0].end, "product": session.program}
    seen = results(bench(programs, rounds=5))
    last = seen[-1]
    assert [r.stage for r in seen] == [
        *("compiling start, 1 of 2", "compiling product, 2 of 2"),
        *(["measuring the device's ceilings"] * 2),
        *("3 of 5 rounds", "5 of 5 rounds"),
    ]
    assert {len(s) for s in last.samples.values()} == {5}
    assert last.speedup("start") == 1 and last.errors["product"] < 1e-5 and last.failures == {}
    sheet = last.sheet()
    assert sheet.column("seconds") == (last.median("start"), last.median("product"))
    at = last.position("product")
    assert at is not None and at.part == max(at.flops_part, at.bandwidth_part) > 0
    assert sheet.column("flops_per_second")[1] == at.flops and last.library.startswith("apache-tvm ")
    assert "5 interleaved rounds, 1 thread" in repr(last.table()) and last.plot().svg.count("<rect") == 3
    assert set(last._repr_mimebundle_()) == {"text/html", "text/plain", "image/svg+xml"}
    run = ee.search(CONV, max_depth=1, budget=20)
    measured = run.benchmark(limit=1, rounds=1)
    assert list(measured.samples) == ["original", "candidate 1"] and measured.programs["original"] == CONV
    assert measured.programs["candidate 1"] == min(run.candidates, key=lambda c: c.rank).program
    assert measured.to_latex().count("candidate 1 & ") == 1 and repr(measured) == repr(measured.table())
    with pytest.raises(ValueError, match="limit 0: expected at least 1"):
        run.benchmark(limit=0)


def test_a_program_that_does_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:

    real = measuring._compile

    def compiled(program: Any, threads: int, constants: Any) -> Any:
        if program == broken:
            raise BackendError("equation Y: no engine")
        return real(program, threads, constants)

    session = branched()
    broken = session.program
    monkeypatch.setattr(measuring, "_compile", compiled)
    last = results(bench({"start": CONV, "broken": broken}, rounds=1))[-1]
    assert last.failures == {"broken": "equation Y: no engine"} and last.speedup("broken") is None
    assert last.iqr("broken") == 0 and "no engine" in repr(last.table())
    with pytest.raises(ValueError, match="broken: equation Y: no engine"):
        results(bench({"broken": broken, "start": CONV}))
    with pytest.raises(ValueError, match="no programs to measure"):
        results(bench({}))
    with pytest.raises(ValueError, match="rounds 0: expected at least 1"):
        results(bench({"start": CONV}, rounds=0))
