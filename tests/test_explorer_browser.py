"""The explorer in a real JupyterLab and a real browser: by mouse, by keyboard, live, narrow, dark, interrupted."""

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import jupytext
import nbconvert
import nbformat
import pytest

import einnet_explore as ee
import einnet_widgets
from tests.lab_kit import ROOT, Lab, Visit, browser, laboratory, marimo, page_of
from tests.widgets_kit import told, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
if browser() is None:
    pytest.skip("no chromium on the path (Debian's package chromium)", allow_module_level=True)

CONV = "ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)"
START = f"""import einnet_explore as ee, einnet_widgets, json, time
session = ee.explore({CONV})
session"""
ERRORS = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
SAY = """print(json.dumps([
    [s.match.rule.name for s in session.derivation.steps], [e.via.operator for e in session.program.equations if e.via],
    session.check().kind, len(session.nodes)]))
names = {}
exec(session.script(), names)
print(ee.program_key(names["session"].program) == ee.program_key(session.program))"""
DERIVATION = (
    ("summation_splitting", "0", "outer = r, s"),
    ("variable_substitution", "0.0", "t1 = h+r-1, t2 = s+w-1"),
    ("traversal_merging", "0", "access = 0"),
    ("boundary_relaxing", "0", "bounds = 0, 1"),
    ("boundary_tightening", "0.0", "t1 in [0, 14), t2 in [0, 14)"),
    ("operator_matching", "0.0", "Matmul b=1"),
    ("eoperator_generation", "3", ""),
)
"""E1 to E7: rule, scope, and what its row says."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Generator[Lab]:
    with laboratory(tmp_path_factory.mktemp("lab")) as opened:
        yield opened


expect = api.expect
"""Waits, as the page may be redrawn after what it answers."""
_names = (f"explorer{n}.ipynb" for n in count())


def notebook(folder: Path, *cells: str) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata={"kernelspec": kernel}
    )
    name = next(_names)
    nbformat.write(made, folder / name)
    return name


@contextmanager
def explored(lab: Lab, *cells: str, width: int = 1600, height: int = 1400) -> Generator[Visit]:
    """The page of a notebook with these cells, the first of which has been run and shows an explorer."""
    with lab.page(notebook(lab.folder, *cells), width, height) as visiting:
        page = visiting.page
        page.set_default_timeout(40_000)
        run_cell(visiting, 0)
        page.wait_for_selector(f".ein-main .katex, {ERRORS}")
        assert page.locator(ERRORS).all_inner_texts() == []
        yield visiting
        assert page.locator(ERRORS).count() == 0
        assert visiting.strangers == []
        assert visiting.errors == []


def run_cell(visiting: Visit, n: int) -> str:
    """Run cell *n* and wait for it; what it printed."""
    page = visiting.page
    page.locator(".jp-CodeCell .jp-InputArea-prompt").nth(n).click()
    page.evaluate(
        "() => { window.einnetRan = false;"
        "jupyterapp.commands.execute('notebook:run-cell').then(() => { window.einnetRan = true; }); }"
    )
    page.wait_for_function("() => window.einnetRan")
    return str(page.locator(".jp-CodeCell").nth(n).locator(".jp-OutputArea-output pre").all_inner_texts())


def said(visiting: Visit, n: int = 1) -> list[str]:
    run_cell(visiting, n)
    return str(visiting.page.locator(".jp-CodeCell").nth(n).locator("pre").last.inner_text()).strip().splitlines()


def stands(visiting: Visit, step: int) -> None:
    visiting.page.locator(".ein-facts b", has_text=f"E{step}").first.wait_for()
    visiting.page.locator(".ein-node.here b", has_text=f"E{step}").wait_for()


def test_a_derivation_by_mouse_alone(lab: Lab) -> None:
    with explored(lab, START, SAY) as visiting:
        page = visiting.page
        for n, (rule, at, says) in enumerate(DERIVATION, 1):
            scope = page.locator(f'.ein-main [data-p="{at}"]').first
            scope.locator(".mop").first.click()  # its L: the point inside that is no nested scope's
            page.wait_for_selector(f'.ein-main[data-at="{at}"]')
            row = page.locator(f'.ein-match[data-rule={rule}][data-at="{at}"]', has_text=says).first
            row.hover()
            page.locator(".ein-preview .katex").first.wait_for()
            expect(page.locator(".ein-main [data-mark=old], .ein-preview [data-mark=new]")).not_to_have_count(0)
            row.click()
            stands(visiting, n)
        page.locator(".ein-badge.proved").wait_for()
        page.get_by_role("button", name="Undo").click()
        stands(visiting, 6)
        page.get_by_role("button", name="Redo").click()
        stands(visiting, 7)
        page.locator(".ein-node").nth(1).click()
        stands(visiting, 1)
        page.locator('.ein-main [data-p="0.0"]').first.locator(".mop").first.click()
        page.locator(".ein-match[data-rule=operator_matching]").first.click()  # another way: a branch
        stands(visiting, 2)
        for n in (7, 8):
            page.locator(".ein-nodes input").nth(n).check()
        page.locator(".ein-compared .ein-badge.proved").wait_for()
        page.locator(".ein-node").nth(7).click()
        stands(visiting, 7)
        told, replays = said(visiting)
        rules, operators, kind, nodes = json.loads(told)
        assert rules == [rule for rule, _, _ in DERIVATION]
        assert operators == ["View", "View", "Matmul", "eOperator"] and kind == "proved" and nodes == 9
        assert replays == "True"


@pytest.mark.slow
def test_a_derivation_by_keyboard_alone(lab: Lab) -> None:
    with explored(lab, START, SAY) as visiting:
        page = visiting.page
        page.locator(".ein-main").focus()
        for n, (rule, at, says) in enumerate(DERIVATION, 1):
            page.locator(".ein-main").focus()
            for _ in range(12):
                here = page.locator(".ein-main").get_attribute("data-at")
                if here == at:
                    break
                down = len(at) > len(here) and at.startswith(f"{here}.")
                page.keyboard.press("ArrowDown" if down else "ArrowUp" if len(here) > len(at) else "ArrowRight")
                page.wait_for_function("was => document.querySelector('.ein-main').dataset.at !== was", arg=here)
            page.wait_for_function(
                "at => [...document.querySelectorAll('.ein-match')].every(m => m.dataset.at.startsWith(at))", arg=at
            )
            for _ in range(40):
                page.keyboard.press("j")
                focused = page.evaluate(
                    "() => { const a = document.activeElement; return [a.dataset.rule, a.dataset.at, a.innerText]; }"
                )
                if focused[:2] == [rule, at] and says in focused[2]:
                    break
            assert focused[:2] == [rule, at] and says in focused[2]
            page.locator(".ein-preview .katex").first.wait_for()
            page.keyboard.press("Enter")
            stands(visiting, n)
        page.locator(".ein-main").focus()
        for key, step in (("u", 6), ("u", 5), ("r", 6), ("r", 7), ("[", 6), ("]", 7)):
            page.keyboard.press(key)
            stands(visiting, step)
        assert page.locator(".jp-CodeCell").count() == 2  # no key was taken for one of JupyterLab's commands
        told, replays = said(visiting)
        assert [rule for rule, _, _ in DERIVATION] == json.loads(told)[0] and replays == "True"


WIDE = """
session = ee.explore(ee.ops.conv2d(N=1, H=7, W=7, C=64, F=64, R=3, S=3, padding=1))
run = session.live_search(max_depth=7, strategy="paper", budget=120)
session"""
COUNT = "() => Number(document.querySelector('.ein-tree').dataset.count ?? 0)"


def test_a_search_is_live_and_an_interrupt_stops_it(lab: Lab) -> None:
    cells = (
        "import einnet_explore as ee, einnet_widgets, json, time" + WIDE,
        "run.start()\nprint('free')",
        "print(json.dumps([run.running, len(run.search.states)]))",
    )
    with explored(lab, *cells) as visiting:
        page = visiting.page
        assert "free" in run_cell(visiting, 1)
        page.wait_for_function(COUNT.replace("() => ", "() => 300 < "))
        first = page.evaluate(COUNT)
        running, states = json.loads(said(visiting, 2)[-1])  # a cell runs while the search goes on
        assert running and states >= first
        page.locator(".ein-tree canvas").scroll_into_view_if_needed()
        page.locator(".ein-tree canvas").click(position={"x": 300, "y": 150})
        page.evaluate("() => jupyterapp.commands.execute('notebook:interrupt-kernel')")
        page.locator(".ein-search .ein-facts", has_text="ended").wait_for()  # long before the budget is over
        running, states = json.loads(said(visiting, 2)[-1])
        assert not running
        page.wait_for_function(f"{COUNT.replace('() => ', '() => ' + str(states) + ' === ')}")
        page.get_by_role("button", name="▶ Search").wait_for()
        page.locator(".ein-tree").focus()
        page.keyboard.press("ArrowDown")
        page.locator(".ein-detail b", has_text="state").first.wait_for()
        page.get_by_role("button", name="Pin").click()
        page.locator(".ein-notice", has_text="is #").wait_for()


def test_an_interrupt_of_a_busy_kernel_stops_a_search(lab: Lab) -> None:
    busy = "run.start()\ntry:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    print('interrupted')"
    with explored(lab, "import einnet_explore as ee, einnet_widgets, time" + WIDE, busy) as visiting:
        page = visiting.page
        page.locator(".jp-CodeCell .jp-InputArea-prompt").nth(1).click()
        page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell'); }")
        page.wait_for_function(COUNT.replace("() => ", "() => 300 < "))
        page.evaluate("() => jupyterapp.commands.execute('notebook:interrupt-kernel')")
        page.locator(".jp-CodeCell pre", has_text="interrupted").wait_for()
        page.locator(".ein-search .ein-facts", has_text="ended").wait_for()


@pytest.mark.slow
def test_two_explorers_a_restart_and_bad_use(lab: Lab) -> None:
    other = START.replace("session", "other")
    with explored(lab, START, other, "print([len(session.nodes), len(other.nodes)])") as visiting:
        page = visiting.page
        run_cell(visiting, 1)
        first, second = page.locator(".ein").all()
        splits = second.locator(".ein-matches li", has=page.locator("[data-rule=summation_splitting]"))
        splits.first.locator(".ein-edit").click()
        field = splits.first.locator(".ein-form input").first
        field.fill("nothing")
        field.press("Enter")
        second.locator(".ein-notice.error", has_text="nothing").wait_for()
        assert said(visiting, 2) == ["[1, 1]"]
        splits.first.locator(".ein-match").click()
        second.locator(".ein-node.here b", has_text="E1").wait_for()
        assert said(visiting, 2) == ["[1, 2]"]
        expect(first.locator(".ein-node")).to_have_count(1)
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
        visiting.run_all(60)
        page.wait_for_function("() => document.querySelectorAll('.ein-main .ein-formula').length === 2")
        assert said(visiting, 2) == ["[1, 1]"]
        page.locator(".ein-match[data-rule=summation_splitting]").first.click()
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        # Closed and opened again while the kernel lives: the same session, and alive.
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        page.goto("about:blank")
        visiting.open(lab.address, visiting.notebook)
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        page.locator(".ein").first.get_by_role("button", name="Undo").click()
        page.locator(".ein-node.here b", has_text="E0").first.wait_for()


LOST = "Error displaying widget"


def shows_saved(visiting: Visit) -> None:
    """The saved form is there, with a step that was applied by a click, its picture, and no error."""
    page = visiting.page
    saved = page.locator(".ein-saved")
    saved.get_by_text("summation_splitting").wait_for()
    assert saved.locator("img").first.evaluate("async it => { await it.decode(); return it.naturalWidth; }") > 100
    expect(page.get_by_text(LOST).filter(visible=True)).to_have_count(0)
    assert page.locator(".ein").count() == 0


def test_a_saved_explorer_is_shown_as_it_was_when_its_kernel_is_gone(lab: Lab) -> None:
    with explored(lab, START) as visiting:
        page, own = visiting.page, visiting.errors
        page.locator(".ein-match", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        saved = page.locator(".ein-saved")
        expect(saved).to_contain_text("summation_splitting")  # einnet_widgets.face.SAVE_SECONDS after the step
        assert saved.count() == 1 and not saved.is_visible()  # while the widget is alive
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        page.goto("about:blank")
        lab.end_kernels()
        visiting.open(lab.address, visiting.notebook)  # trusted, with a new kernel
        shows_saved(visiting)
        expect(page.locator(".jp-OutputArea-child").filter(visible=True)).to_have_count(1)
        assert [e for e in own if "model not found" not in e] == []
        own.clear()  # ipywidgets logs the missing model
        path = lab.folder / visiting.notebook
        assert path.stat().st_size < 60_000
        held = nbformat.read(path, 4)
        page_html, _ = nbconvert.HTMLExporter().from_notebook_node(held)
        (lab.folder / "saved.html").write_text(page_html)
        assert "widgets" not in held.metadata
        held.cells[0].source += "  # by another hand, so that the notebook is not trusted"
        nbformat.write(held, path)
        visiting.open(lab.address, visiting.notebook)
        shows_saved(visiting)
        own.clear()
    with page_of(lab.context, 1400, 1200) as visiting:
        visiting.page.goto((lab.folder / "saved.html").as_uri())
        shows_saved(visiting)


def test_a_page_is_interactive_without_a_kernel(lab: Lab, tmp_path: Path) -> None:
    session = ee.explore(ee.ops.conv2d(N=1, H=5, W=4, C=3, F=2, R=3, S=3, padding=1))
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    run = session.search(target="Matmul", max_depth=1)
    face = einnet_widgets.Explorer(session)
    sent = told(face)
    face.receive({"do": "share"})
    ((message, _),) = sent
    strict = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
    head = f"<head><meta http-equiv='Content-Security-Policy' content=\"{strict}\">"
    (tmp_path / "page.html").write_text(message["text"].replace("<head>", head, 1))
    assert message["name"] == "session.html" and len(message["text"]) < 600_000
    with page_of(lab.context, 1400, 1200) as visiting:
        page = visiting.page
        page.goto((tmp_path / "page.html").as_uri())
        page.locator(".ein-node.here b", has_text="E2").wait_for()
        page.locator(f'.ein-tree[data-count="{len(run.search.states)}"]').wait_for()
        page.get_by_role("button", name="Undo").click()
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        page.locator('.ein-main [data-p="0.0"]').first.locator(".mop").first.click()
        page.wait_for_selector('.ein-main[data-at="0.0"]')
        recorded = page.locator(".ein-match[data-rule=operator_matching]", has_text="Matmul")
        expect(recorded.and_(page.locator(":not([data-at='0.0'])"))).to_have_count(0)
        page.locator(
            ".ein-match[data-rule=summation_splitting], .ein-match[data-rule=variable_substitution]"
        ).first.click()
        page.locator(".ein-notice", has_text="no kernel").wait_for()
        page.locator(".ein-preview, .ein-main .katex").first.wait_for()
        page.locator(".ein").focus()
        page.keyboard.press("u")
        page.locator(".ein-node.here b", has_text="E0").wait_for()
        page.locator(".ein-match", has_text="outer = r, s").first.click()
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        page.get_by_role("button", name="Script").click()
        expect(page.locator(".ein-notice pre")).to_contain_text("session.apply('operator_matching'")
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="✓ Copied").wait_for()
        page.evaluate(
            "() => { document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' })); }"
        )
        page.locator("#paste").focus()
        page.keyboard.press("ControlOrMeta+v")
        assert "session.apply('operator_matching'" in page.locator("#paste").input_value()
        assert visiting.strangers == [] and visiting.errors == []


def test_a_search_is_read_and_steered_and_the_session_saved_and_opened(lab: Lab, tmp_path: Path) -> None:
    other = "other = ee.explore(ee.ops.matmul(4, 6, 8))\nother"
    ask = "print(json.dumps([other.pins, other.notes, len(other.nodes), len(other.runs), other.script()]))"
    with explored(lab, START, other, ask) as visiting:
        page = visiting.page
        page.locator(".ein-match", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        page.locator(".ein-annotate > summary").click()
        page.locator("input[aria-label='name of the pin']").fill("split")
        page.keyboard.press("Enter")
        page.locator(".ein-pin", has_text="split").wait_for()
        page.locator("textarea[aria-label=note]").fill("r and s stay outside")
        page.locator(".ein-annotate").get_by_role("button", name="Note").click()
        page.locator(".ein-note", has_text="r and s stay outside").wait_for()

        page.locator(".ein-options > summary").click()
        page.locator("input[name=max_depth]").fill("1")
        page.locator("input[name=starts][value=split]").check()
        page.locator("input[name=must_use][value=variable_substitution]").check()
        page.get_by_role("button", name="▶ Search").click()
        page.locator(".ein-search .ein-facts", has_text="done").wait_for()
        page.locator("input[name=must_use][value=variable_substitution]:checked").wait_for()
        page.locator(".ein-plots > summary").click()
        expect(page.locator(".ein-plots figure")).to_have_count(2)  # nothing was measured
        page.locator(".ein-plots circle.best").last.click()
        page.locator(".ein-detail b", has_text="state").wait_for()
        state = page.locator(".ein-plots circle.chosen").first.get_attribute("data-state")
        expect(page.locator(".ein-detail b").first).to_have_text(f"state {state}")
        page.locator(".ein-filter").fill('why:"does not use variable"')
        page.locator(".ein-count", has_text=re.compile(r"^[1-9]\d* of ")).wait_for()
        page.locator(".ein-filter").fill("")
        page.get_by_role("button", name="Forbid this edge").click()
        page.locator("fieldset", has_text="does not follow").get_by_text(f"to {state}").wait_for()
        # Along the last row of the tree, until a state is pointed at.
        canvas = page.locator(".ein-tree canvas")
        box = canvas.bounding_box()
        for x in range(20, int(box["width"]) - 20, 12):
            canvas.hover(position={"x": x, "y": box["height"] - 34})
            if page.locator(".ein-tree .ein-tip").is_visible():
                break
        page.locator(".ein-tree .ein-tip .katex").first.wait_for()
        page.locator(".ein-tree .ein-tip li", has_text="variable substitution").wait_for()

        with page.expect_download() as saved:
            page.get_by_role("button", name="Save", exact=True).click()
        saved.value.save_as(tmp_path / "session.eins")
        run_cell(visiting, 1)
        second = page.locator(".ein").nth(1)
        second.locator(".ein-main .katex").first.wait_for()
        (tmp_path / "damaged.eins").write_text((tmp_path / "session.eins").read_text()[:99])
        for name, says in (
            ("damaged", "expected JSON"),
            ("session", "opened session.eins: 2 nodes, 1 pin, 1 note, 1 search"),
        ):
            second.locator("input[type=file]").set_input_files(tmp_path / f"{name}.eins")
            second.locator(".ein-notice", has_text=says).wait_for()
        second.locator(".ein-pin", has_text="split").wait_for()
        states = page.locator(".ein-tree").first.get_attribute("data-count")
        expect(second.locator(".ein-tree")).to_have_attribute("data-count", states)
        pins, notes, nodes, runs, script = json.loads(said(visiting, 2)[-1])
        assert (pins, notes, nodes, runs) == ({"split": 1}, {"1": "r and s stay outside"}, 2, 1)
        assert "summation_splitting" in script
        second.get_by_role("button", name="Back to the session before").click()
        second.locator(".ein-notice", has_text="opened the session before: 1 node").wait_for()


def bright(page: Any) -> bool:
    """Whether the panels' ink is darker than their paper."""
    ink, paper = page.evaluate(
        "() => { const p = document.querySelector('.ein-panel'), s = getComputedStyle(p);"
        "const paint = document.createElement('canvas').getContext('2d');"
        "const bright = c => { paint.fillStyle = c; paint.fillRect(0, 0, 1, 1);"
        "return paint.getImageData(0, 0, 1, 1).data.slice(0, 3).reduce((a, b) => a + b, 0); };"
        "return [bright(s.color), bright(s.backgroundColor)]; }"
    )
    return bool(ink < paper)


def faults(page: Any) -> list[Any]:
    """Return the serious violations that axe-core finds."""
    found = page.evaluate(
        "async () => (await axe.run('.ein')).violations.filter(v => ['serious', 'critical'].includes(v.impact))"
        ".map(v => [v.id, v.nodes.map(n => n.html + ' ' + n.failureSummary)])"
    )
    return list(found)


def side_by_side(page: Any, width: int) -> None:
    """Panels stand beside one another where there is room, below where there is not, and never beyond the edge."""
    boxes = {name: page.locator(f"[data-panel={name}]").bounding_box() for name in ("history", "expression", "rules")}
    beside = boxes["rules"]["x"] > boxes["expression"]["x"] + boxes["expression"]["width"] - 1
    assert beside == (width > 1000)
    around = page.locator(".ein").first.bounding_box()
    wider = page.evaluate("() => [...document.querySelectorAll('.ein')].map(e => e.scrollWidth - e.clientWidth)")
    assert max(wider) <= 1, wider
    assert all(b["x"] >= around["x"] - 1 for b in boxes.values())
    assert all(b["x"] + b["width"] <= around["x"] + around["width"] + 1 for b in boxes.values())


def test_no_serious_fault_of_accessibility_in_either_theme_wide_or_narrow(lab: Lab) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core's package is not installed")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text()
    others = (
        "display(einnet_widgets.QuizView(ee.Quiz(session.derivation), 'a goal'), einnet_widgets.OptimizeCell('m.onnx'))"
    )
    with explored(lab, START, others) as visiting:
        page = visiting.page
        page.locator(".ein-match[data-rule=summation_splitting]", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        run_cell(visiting, 1)
        page.locator(".ein-choices button[data-rule=boundary_relaxing]").click()
        page.locator(".ein-answers li").wait_for()
        for n in range(3):
            page.get_by_role("button", name="Hint").click()
            page.locator(".ein-hints li").nth(n).wait_for()
        page.locator(".ein-hints .katex").wait_for()
        for summary in (".ein-refusals > summary", "[data-panel=table] > summary", "[data-panel=bench] > summary"):
            page.locator(summary).click()
        page.locator(".ein-options > summary").click()
        page.locator("input[name=max_depth]").fill("1")
        page.get_by_role("button", name="▶ Search").click()
        page.locator(".ein-search .ein-facts", has_text="done").wait_for()
        page.locator(".ein-edit").first.click()
        for summary in (".ein-plots > summary", ".ein-annotate > summary"):
            page.locator(summary).click()
        page.locator(".ein-annotate").get_by_role("button", name="Pin").click()
        page.locator(".ein-pin").wait_for()
        page.locator(".ein-top tbody button").first.click()
        page.locator(".ein-detail b").first.wait_for()
        page.evaluate(source)
        # A fault that everybody would see: were it not found, what is said below would mean nothing.
        page.evaluate("() => { const b = document.createElement('button'); b.id = 'fault'; "
                      "document.querySelector('.ein').append(b); }")  # fmt: skip
        assert "button-name" in [rule for rule, *_ in faults(page)]
        page.evaluate("() => document.getElementById('fault').remove()")
        for theme in ("Dark", "Light"):
            page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})")
            light = str(theme == "Light").lower()
            page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
            for width in (1600, 800):
                page.set_viewport_size({"width": width, "height": 1400})
                page.wait_for_timeout(300)  # the theme's colours and the columns come with the next frames
                page.locator(".ein-match[data-rule=variable_substitution]").first.hover()
                page.locator(".ein-preview .katex").first.wait_for()
                until(lambda light=theme == "Light": bright(page) == light)
                side_by_side(page, width)
                page.wait_for_timeout(100)
                assert faults(page) == [], (theme, width)


def test_notebook_7_by_keyboard(lab: Lab) -> None:
    pytest.importorskip("notebook", reason="Notebook 7 is not installed")
    name = notebook(lab.folder, START)
    with page_of(lab.context, 1400, 1200) as visiting:
        page = visiting.page
        page.set_default_timeout(40_000)
        page.goto(f"{lab.address}/notebooks/{name}", wait_until="domcontentloaded")
        # What is run before there is a kernel is dropped without a word.
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
        own = len(visiting.errors)  # Notebook's, before anything of ours is there
        prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
        while prompt.inner_text().strip() == "[ ]:":  # until it is taken, which "idle" alone does not promise
            page.locator(".jp-CodeCell .cm-content").first.click()
            page.keyboard.press("Shift+Enter")
            page.wait_for_timeout(3_000)
        page.wait_for_selector(f".ein-main .katex, {ERRORS}", timeout=120_000)  # maybe the first import here
        cells = page.locator(".jp-CodeCell").count()
        page.locator(".ein").focus()
        for key in ("j", "j"):
            page.keyboard.press(key)
        page.locator(".ein-preview .katex").first.wait_for()
        page.keyboard.press("Enter")
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        for key, step in (("u", 0), ("r", 1), ("[", 0), ("]", 1)):
            page.keyboard.press(key)
            page.locator(".ein-node.here b", has_text=f"E{step}").wait_for()
        assert page.locator(".jp-CodeCell").count() == cells  # no key was taken for one of Notebook's commands
        assert page.locator(ERRORS).count() == 0 and visiting.strangers == [] and visiting.errors[own:] == []
    lab.end_kernels()


MARIMO = f"""# /// script
# [tool.marimo.display]
# theme = "dark"
# ///
import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import einnet_explore as ee
    import einnet_widgets

    session = ee.explore({CONV})
    session
    return einnet_widgets, session


@app.cell
def _(einnet_widgets, session):
    einnet_widgets.GraphView(session)
    return
"""


def test_marimo_by_mouse_and_by_keyboard(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("marimo", reason="marimo is not installed")
    (tmp_path / "explorer.py").write_text(MARIMO)
    with marimo(tmp_path / "explorer.py") as address, page_of(lab.context, 1600, 1400) as visiting:
        page = visiting.page
        page.set_default_timeout(40_000)
        page.goto(address, wait_until="domcontentloaded")
        page.locator(".ein-main .katex").first.wait_for()
        page.locator('.ein-main [data-p="0"] .mop').first.click()
        page.locator(".ein-match[data-rule=summation_splitting]", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        page.locator(".ein-badge.proved").wait_for()
        page.locator(".ein").first.focus()
        for key, step in (("u", 0), ("r", 1), ("[", 0), ("]", 1)):
            page.keyboard.press(key)
            page.locator(".ein-node.here b", has_text=f"E{step}").wait_for()
        page.locator(".ein-options > summary").click()
        page.locator("input[name=max_depth]").fill("1")
        page.get_by_role("button", name="▶ Search").click()
        page.locator(".ein-search .ein-facts", has_text="done").wait_for()
        page.locator(".ein-top tbody button").first.click()
        page.locator(".ein-detail b", has_text="state").wait_for()
        page.wait_for_function("[...document.fonts].some(f => f.family.includes('KaTeX') && f.status === 'loaded')")
        ink = page.locator(".ein-badge.proved").evaluate("it => getComputedStyle(it).color")
        assert sum(map(int, re.findall(r"\d+", ink)[:3])) > 400  # bright on dark, inside a shadow root too
        page.locator(".alone .ein-graph svg").wait_for()
        assert visiting.strangers == [] and visiting.errors == []


LONG = """ee.show(ee.parse("tensor A[64]\\n" + "\\n".join(f"Y{n}[i:64] = A[i // 2 + i % 2]" for n in range(99))))"""
"""Formulas beyond what MathJax takes after a macro."""


def by_hand(folder: Path) -> int:
    """Write the tour up to its searches into *folder*, and a long formula; returns how many cells of code it has."""
    notebook = jupytext.read(ROOT / "notebooks" / "00_tour.py")
    stop = next(n for n, cell in enumerate(notebook.cells) if cell.source.startswith("## By search"))
    notebook.cells = [*notebook.cells[:stop], nbformat.v4.new_code_cell(LONG)]
    nbformat.write(notebook, folder / "tour.ipynb")
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def test_the_tour_by_hand_runs_in_jupyterlab(lab: Lab) -> None:
    cells = by_hand(lab.folder)
    with lab.page("tour.ipynb", 1280, 1000) as visiting:
        page = visiting.page
        visiting.run_all(60)
        page.wait_for_selector(".jp-RenderedLatex mjx-container, .jp-RenderedLatex .MathJax")
        assert page.locator(ERRORS).count() == 0
        page.locator(".jp-CodeCell .jp-InputPrompt").get_by_text(f"[{cells}]:").wait_for()
        prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        assert [p.strip() for p in prompts] == [f"[{n}]:" for n in range(1, cells + 1)]
        assert page.locator(".jp-RenderedLatex mjx-merror").count() == 0
        drawn = "all => Promise.all(all.map(async it => { await it.decode(); return it.naturalWidth; }))"
        assert page.locator(".jp-RenderedSVG img").evaluate_all(drawn) == [840]
        page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.locator("#jp-left-stack").wait_for()
        room = page.locator(".jp-RenderedSVG").evaluate_all("all => all.map(it => it.scrollWidth <= it.clientWidth)")
        assert room == [True]  # beside the files, too, which JupyterLab shows at first
        page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")

        explorer = page.locator(".ein").first
        explorer.locator(".ein-main .katex").first.wait_for()
        explorer.locator(".ein-match", has_text="outer = r, s").first.click()
        explorer.locator(".ein-node.here b", has_text="E1").wait_for()
        explorer.get_by_role("button", name="Prove").click()
        explorer.get_by_text("equal for every input").wait_for()
        explorer.get_by_role("button", name="Undo").click()
        explorer.locator(".ein-node.here b", has_text="E0").wait_for()
        expect(explorer.locator(".ein-node")).to_have_count(2)  # what was undone is a branch

        assert visiting.strangers == []
        assert visiting.errors == []
