"""The explorer in a real JupyterLab and a real browser: by mouse, by keyboard, live, narrow, dark, interrupted."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

import einnet_explore as ee
import einnet_widgets
from tests.lab_kit import ROOT, Visit, browser, jupyterlab, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
pytest.importorskip("playwright", reason="the Python package playwright is not installed")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
if browser() is None:
    pytest.skip("no chromium on the path (Debian's package chromium)", allow_module_level=True)

CONV = "ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3)"
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


def notebook(folder: Path, *cells: str) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(made, folder / "explorer.ipynb")


@contextmanager
def explored(folder: Path, *cells: str, width: int = 1600, height: int = 1400, dark: bool = False) -> Generator[Visit]:
    """The page of a notebook with these cells, the first of which has been run and shows an explorer."""
    notebook(folder, *cells)
    with jupyterlab(folder) as address, visit(width, height) as visiting:
        page = visiting.page
        visiting.open(address, "explorer.ipynb")
        page.set_default_timeout(40_000)
        if dark:
            page.evaluate("jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })")
            page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
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


def test_a_derivation_by_mouse_alone(tmp_path: Path) -> None:
    with explored(tmp_path, START, SAY) as visiting:
        page = visiting.page
        for n, (rule, at, says) in enumerate(DERIVATION, 1):
            scope = page.locator(f'.ein-main [data-p="{at}"]').first
            scope.locator(".mop").first.click()  # its L: the point inside that is no nested scope's
            page.wait_for_selector(f'.ein-main[data-at="{at}"]')
            row = page.locator(f'.ein-match[data-rule={rule}][data-at="{at}"]', has_text=says).first
            row.hover()
            page.locator(".ein-preview .katex").first.wait_for()
            assert page.locator(f'.ein-main [data-p="{at}"][data-mark=old]').count() == 1
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
def test_a_derivation_by_keyboard_alone(tmp_path: Path) -> None:
    with explored(tmp_path, START, SAY) as visiting:
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
session = ee.explore(ee.ops.conv2d(N=1, H=7, W=7, C=64, F=64, R=3, S=3))
run = session.search(max_depth=7, strategy="paper", limit=120)
session"""
COUNT = "() => Number(document.querySelector('.ein-tree').dataset.count ?? 0)"


def test_a_search_is_live_and_an_interrupt_stops_it(tmp_path: Path) -> None:
    cells = (
        "import einnet_explore as ee, einnet_widgets, json, time" + WIDE,
        "run.start()\nprint('free')",
        "print(json.dumps([run.running, len(run.search.states)]))",
    )
    with explored(tmp_path, *cells) as visiting:
        page = visiting.page
        assert "free" in run_cell(visiting, 1)
        page.wait_for_function(COUNT.replace("() => ", "() => 300 < "))
        first = page.evaluate(COUNT)
        running, states = json.loads(said(visiting, 2)[-1])  # a cell runs while the search goes on
        assert running and states >= first
        page.locator(".ein-tree canvas").scroll_into_view_if_needed()
        page.locator(".ein-tree canvas").click(position={"x": 300, "y": 150})
        page.wait_for_timeout(300)
        page.evaluate("() => jupyterapp.commands.execute('notebook:interrupt-kernel')")
        page.locator(".ein-search .ein-facts", has_text="ended").wait_for(timeout=5000)
        running, states = json.loads(said(visiting, 2)[-1])
        assert not running
        page.wait_for_function(f"{COUNT.replace('() => ', '() => ' + str(states) + ' === ')}")
        page.get_by_role("button", name="▶ Search").wait_for()
        page.locator(".ein-tree").focus()
        page.keyboard.press("ArrowDown")
        page.locator(".ein-detail b", has_text="state 0").or_(
            page.locator(".ein-detail b", has_text="state")
        ).first.wait_for()
        page.get_by_role("button", name="Pin").click()
        page.locator(".ein-notice", has_text="is node").wait_for()


@pytest.mark.slow
def test_two_explorers_a_restart_and_bad_use(tmp_path: Path) -> None:
    other = START.replace("session", "other")
    with explored(tmp_path, START, other, "print([len(session.nodes), len(other.nodes)])") as visiting:
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
        assert first.locator(".ein-node").count() == 1
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
        visiting.run_all(60)
        page.wait_for_function("() => document.querySelectorAll('.ein-main .katex').length === 2")
        assert said(visiting, 2) == ["[1, 1]"]
        page.locator(".ein-match[data-rule=summation_splitting]").first.click()
        page.locator(".ein-node.here b", has_text="E1").wait_for()


def test_a_page_is_interactive_without_a_kernel(tmp_path: Path) -> None:
    session = ee.explore(ee.ops.conv2d(N=1, H=5, W=4, C=3, F=2, R=3, S=3))
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    run = session.search(target="Matmul", max_depth=1)
    for _ in run:
        pass
    einnet_widgets.to_html(session, tmp_path / "page.html")
    with visit(1400, 1200) as visiting:
        page = visiting.page
        page.goto((tmp_path / "page.html").as_uri())
        page.locator(".ein-node.here b", has_text="E2").wait_for()
        page.locator(f'.ein-tree[data-count="{len(run.search.states)}"]').wait_for()
        page.get_by_role("button", name="Undo").click()
        page.locator(".ein-node.here b", has_text="E1").wait_for()
        page.locator('.ein-main [data-p="0.0"]').first.locator(".mop").first.click()
        recorded = page.locator(".ein-match[data-rule=operator_matching]", has_text="Matmul").all()
        assert all(row.get_attribute("data-at") == "0.0" for row in recorded)
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
        assert "session.apply('operator_matching'" in page.locator(".ein-notice pre").inner_text()
        assert visiting.strangers == [] and visiting.errors == []


AXE = ROOT / "widgets" / "js" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.slow
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is installed by `npm install` in widgets/js")
@pytest.mark.parametrize("dark", [False, True])
def test_no_serious_fault_of_accessibility(tmp_path: Path, dark: bool) -> None:
    with explored(tmp_path, START, dark=dark) as visiting:
        page = visiting.page
        page.locator(".ein-match[data-rule=summation_splitting]", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        for summary in (".ein-refusals > summary", "[data-panel=table] > summary", "[data-panel=bench] > summary"):
            page.locator(summary).click()
        page.get_by_role("button", name="▶ Search").click()
        page.locator(".ein-search .ein-facts", has_text="done").wait_for()
        page.locator(".ein-edit").first.click()
        page.locator(".ein-top button").first.click()
        page.locator(".ein-detail b").first.wait_for()
        page.evaluate(AXE.read_text())
        faults = page.evaluate(
            "async () => (await axe.run('.ein')).violations.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => [v.id, v.nodes.map(n => n.html + ' ' + n.failureSummary)])"
        )
        assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(800, False), (1600, True)])
def test_narrow_and_dark(tmp_path: Path, width: int, dark: bool) -> None:
    with explored(tmp_path, START, width=width, dark=dark) as visiting:
        page = visiting.page
        page.locator(".ein-match[data-rule=summation_splitting]", has_text="outer = r, s").first.click()
        stands(visiting, 1)
        page.locator(".ein-match[data-rule=variable_substitution]").first.hover()
        page.locator(".ein-preview .katex").first.wait_for()
        boxes = {
            name: page.locator(f"[data-panel={name}]").bounding_box() for name in ("history", "expression", "rules")
        }
        beside = boxes["rules"]["x"] > boxes["expression"]["x"] + boxes["expression"]["width"] - 1
        assert beside == (width > 1000)
        around = page.locator(".ein").bounding_box()
        assert all(b["x"] >= around["x"] - 1 for b in boxes.values())
        assert all(b["x"] + b["width"] <= around["x"] + around["width"] + 1 for b in boxes.values())
        ink, paper = page.evaluate(
            "() => { const p = document.querySelector('.ein-panel'), s = getComputedStyle(p);"
            "const bright = c => c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);"
            "return [bright(s.color), bright(s.backgroundColor)]; }"
        )
        assert (ink > paper) == dark
