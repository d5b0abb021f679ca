"""Measure the latency of the explorer through JupyterLab in Chromium: ``python -m benchmarks.explorer``.

The measurements are: from running a cell to the first picture of its explorer, in a new kernel and a new page; from a
click to the Python event, and to the list of rules; the first picture of 20,000 states;
with the plots open, frames while these are dragged, and from a filter to its picture; frames while a search extends the
tree; the largest update; from a kernel interrupt to the end of the search.  Figures are medians over clicks or frames.
A browser shows a frame every 16.7 ms; the page's own work per frame (scripts, layout, painting) is reported as well.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import nbformat

from tests.lab_kit import Lab, laboratory

PAINTS, CLICKS, STATES, SECONDS, DRAGS = 7, 20, 20_000, 10, 200
SETTLED = 2500
"""Milliseconds after which a new explorer has also written its saved form."""

FIRST = (
    """import einnet_explore as ee, einnet_widgets, json, time
program = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)""",
    """began = time.time()
face = einnet_widgets.explorer(ee.explore(program))
made = time.time()
face""",
    "print(json.dumps([began, made]))",
)
PAINT = """() => new Promise(done => {
  const began = performance.now(), after = new MessageChannel();
  const parts = ['.ein-main .katex', '.ein-match', '.ein-graph svg', '.ein-node', '.ein-tree canvas'];
  after.port1.onmessage = () => done([performance.timeOrigin + began, performance.now() - began]);
  const seen = (_, me) => {
    if (!parts.every(part => document.querySelector(part))) return;
    me.disconnect();
    requestAnimationFrame(() => after.port2.postMessage(0));
  };
  new MutationObserver(seen).observe(document.body, { childList: true, subtree: true });
  jupyterapp.commands.execute('notebook:run-cell');
})"""
START = """import einnet_explore as ee, einnet_widgets, json, time
from dataclasses import replace
session = ee.explore(ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1))
session.apply("summation_splitting", at="Y", outer=["r", "s"])
PHI = {"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"}
session.apply("variable_substitution", at="Y.0", phi=PHI)
for match in ee.clean(session.program)[0]:
    session.apply(match)
face = einnet_widgets.explorer(session)
events = []
receive = face.desk.receive
face.desk.receive = lambda *asked: (events.append(time.time()), receive(*asked))[1]
face"""
LARGE = f"""other = ee.explore(ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1))
run = other.search(max_depth=3, strategy="paper", budget=20)
states, found = run.search.states, {{c.state: c for c in run.candidates}}
block = len(states)
while len(states) < {STATES}:
    shift, n = len(states) - len(states) % block, len(states)
    old = states[n % block or 1]
    if old.id in found:
        run.candidates.append(replace(found[old.id], state=n))
        run.found_seconds[n] = n / 1000
    states.append(replace(old, id=n, parent=old.parent + shift if old.parent else 0))
large = einnet_widgets.SearchMonitor(other)
large"""
LIVE = """live = ee.explore(ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1))
feed = live.live_search(max_depth=7, strategy="paper", budget=60)
monitor = einnet_widgets.SearchMonitor(live)
sizes = []
send = monitor.send
monitor.send = lambda m, b=None: (sizes.append(len(json.dumps(m)) + sum(map(len, b or []))), send(m, b))[1]
feed.start()
monitor"""
FRAMES = """() => { window.frames_ = []; window.work_ = []; let last = performance.now(), began = 0;
const after = new MessageChannel();
after.port1.onmessage = () => window.work_.push(performance.now() - began);
(function next() { const now = performance.now(); window.frames_.push(now - last); last = began = now;
after.port2.postMessage(0); requestAnimationFrame(next); })(); }"""
FILTER = """words => new Promise(done => {
  const panel = [...document.querySelectorAll('.ein-search')].at(-1), field = panel.querySelector('.ein-filter');
  const began = performance.now(), after = new MessageChannel();
  after.port1.onmessage = () => done(performance.now() - began);
  field.value = words;
  field.dispatchEvent(new Event('input', { bubbles: true }));
  requestAnimationFrame(() => after.port2.postMessage(0));
})"""
FILTERS = (
    "rule:split",
    "cost<20us",
    "operator:matmul",
    "m=196",
    "depth=2",
    "candidates",
    "distance<=1 rule:merging",
    "",
)
INTERRUPT = """() => new Promise(done => {
  const facts = [...document.querySelectorAll('.ein-search .ein-facts')].at(-1), began = performance.now();
  const look = () => facts.textContent.startsWith('ended') ? done(performance.now() - began) : setTimeout(look, 5);
  jupyterapp.commands.execute('notebook:interrupt-kernel').then(look);
})"""
RULES = """at => new Promise(done => {
  const list = document.querySelector('.ein-matches'), began = performance.now();
  const seen = (_, me) => { me.disconnect(); done([performance.timeOrigin + began, performance.now() - began]); };
  new MutationObserver(seen).observe(list, { childList: true });
  const target = document.querySelector(`.ein-main [data-p="${at}"] .mop`), box = target.getBoundingClientRect();
  target.dispatchEvent(new MouseEvent('click', { bubbles: true, clientX: box.x + 3, clientY: box.y + 3 }));
})"""


def main() -> None:
    """Print one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "first.ipynb", *FIRST)
        write(Path(folder) / "bars.ipynb", START, "print(json.dumps(events))", LARGE, LIVE, "print(json.dumps(sizes))")
        with laboratory(Path(folder)) as lab:
            first = painted(lab)
            with lab.page("bars.ipynb", 1600, 1400) as visiting:
                print(json.dumps(first | measured(visiting.page)))


def write(path: Path, *cells: str) -> None:
    """Write a notebook of *cells* to *path*."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(made, path)


def painted(lab: Lab) -> dict[str, float]:
    """Return the time from running a cell to the first picture of its explorer, and Python's part up to the message.

    Every picture is the first one of a new kernel that has imported the package, in a new page.
    """
    whole, python = list[float](), list[float]()
    for _ in range(PAINTS):
        with lab.page("first.ipynb", 1600, 1400) as visiting:
            page = visiting.page
            page.set_default_timeout(120_000)
            run(page, 0)
            select(page, 1)
            asked, spent = page.evaluate(PAINT)
            page.wait_for_timeout(SETTLED)
            _, made = (1000 * t for t in json.loads(run(page, 2)))
            whole.append(spent)
            python.append(made - asked)
    browser = median(a - b for a, b in zip(whole, python, strict=True))
    return {
        "first_paint_ms": median(whole),
        "first_paint_largest_ms": max(whole),
        "first_paint_python_ms": median(python),
        "first_paint_browser_ms": browser,
    }


def measured(page: Any) -> dict[str, float]:
    """Return all figures, in milliseconds and bytes."""
    page.set_default_timeout(120_000)
    run(page, 0)
    page.wait_for_selector(".ein-main .katex")
    page.wait_for_timeout(1500)
    clicks = [page.evaluate(RULES, "0.0" if n % 2 == 0 else "0") for n in range(CLICKS)]
    events = [1000 * t for t in json.loads(run(page, 1))][-CLICKS:]
    run(page, 2)
    page.wait_for_function(f"() => Number(document.querySelectorAll('.ein-tree')[1]?.dataset.count) >= {STATES}")
    large = json.loads(page.locator(".ein-tree").nth(1).get_attribute("data-times"))
    dragged = panned(page)
    run(page, 3)
    page.locator(".ein-tree").nth(2).scroll_into_view_if_needed()
    page.evaluate(FRAMES)
    page.wait_for_timeout(1000 * SECONDS)
    frames, work = page.evaluate("() => [window.frames_, window.work_]")
    drawn = json.loads(page.locator(".ein-tree").nth(2).get_attribute("data-times"))
    ended = page.evaluate(INTERRUPT)
    return {
        "click_to_python_ms": median(event - began for event, (began, _) in zip(events, clicks, strict=True)),
        "click_to_rules_ms": median(spent for _, spent in clicks),
        "states_layout_ms": large["layout"],
        "states_draw_ms": large["draw"],
        **dragged,
        "live_frame_ms": median(frames),
        "live_frame_work_ms": median(work),
        "live_draw_ms": drawn["draw"],
        "interrupt_to_ended_ms": ended,
        "largest_tree_message_bytes": max(json.loads(run(page, 4))),
    }


def panned(page: Any) -> dict[str, float]:
    """Return frames while the last tree is dragged, with its plots open, and the time from a filter to its picture."""
    panel = page.locator(".ein-search").last
    panel.locator(".ein-plots > summary").click()
    panel.locator(".ein-plots circle").first.wait_for()
    canvas = panel.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    taken = {"TaskDuration": 0.0, "JSHeapUsedSize": 0.0}

    def read() -> dict[str, float]:
        found = metrics.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found if each["name"] in taken}

    page.mouse.move(x, y)
    page.mouse.down()
    before = read()
    page.evaluate(FRAMES)
    for n in range(DRAGS):
        page.mouse.move(x + 200 * (n % 40 - 20) / 20, y)
        page.wait_for_timeout(16)
    frames, work = page.evaluate("() => [window.frames_, window.work_]")
    after = read()
    page.mouse.up()
    filters = [page.evaluate(FILTER, words) for words in FILTERS]
    return {
        "states_frame_ms": median(frames),
        "states_frame_95_ms": sorted(frames)[int(0.95 * len(frames))],
        "states_frame_work_ms": median(work),
        "states_frame_processor_ms": 1000 * (after["TaskDuration"] - before["TaskDuration"]) / len(frames),
        "states_filter_ms": median(filters),
        "states_filter_largest_ms": max(filters),
        "heap_megabytes": after["JSHeapUsedSize"] / 1e6,
    }


def run(page: Any, n: int) -> str:
    """Run cell *n*, wait for it, and return the last line that it printed."""
    select(page, n)
    page.evaluate(
        "() => { window.ran = false;"
        "jupyterapp.commands.execute('notebook:run-cell').then(() => { window.ran = true; }); }"
    )
    page.wait_for_function("() => window.ran")
    page.wait_for_timeout(300)
    shown = page.locator(".jp-CodeCell").nth(n).locator(".jp-OutputArea-output pre")
    return str(shown.last.inner_text()) if shown.count() else ""


def select(page: Any, n: int) -> None:
    """Make cell *n* the active one; a click on it would reach what covers it."""
    page.evaluate("n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n; }", n)


if __name__ == "__main__":
    main()
