"""The front end's own tests, from its sources and in the browser itself: nothing to install, no Node."""

import json
import re
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tests.lab_kit import ROOT, browser, visit

SOURCES = ROOT / "widgets" / "js"
STATIC = ROOT / "widgets" / "einnet_widgets" / "static"
HERE = "http://127.0.0.1:9"
"""No server is there: what is asked for comes from the files."""

FONT = "data:text/javascript,export default new Uint8Array(4)"


STRICT = (
    f"default-src 'none'; script-src 'unsafe-inline' data: {HERE}; style-src 'unsafe-inline' {HERE}; img-src data:; "
    "connect-src 'none'"
)
"""A page that may fetch nothing and evaluate no text, as the front ends of editors are."""


@pytest.mark.browser
@pytest.mark.skipif(browser() is None, reason="no chromium on the path (Debian's package chromium)")
def test_the_front_end_passes_its_own_tests() -> None:
    pytest.importorskip("playwright", reason="the Python package playwright is not installed")
    files = sorted((SOURCES / "test").glob("*.test.js"))
    with visit() as visiting:
        visiting.page.route(f"{HERE}/**", lambda route: _answer(route, files))
        visiting.page.goto(f"{HERE}/")
        told = visiting.page.evaluate("() => window.told")
        assert visiting.strangers == [] and visiting.errors == []
    assert told["failed"] == []
    assert told["count"] >= 42


def _answer(route: Any, files: list[Path]) -> None:
    path = route.request.url.removeprefix(f"{HERE}/")
    if not path:
        headers = {"content-security-policy": STRICT, "content-type": "text/html; charset=utf-8"}
        route.fulfill(body=_page(files), headers=headers)
        return
    found = STATIC / path.removeprefix("static/") if path.startswith("static/") else SOURCES / path
    if not found.is_file():
        route.fulfill(status=404, body="")
        return
    kind = {".js": "text/javascript", ".css": "text/css"}[found.suffix]
    route.fulfill(body=found.read_text(), content_type=kind)


def _page(files: list[Path]) -> str:
    fonts = re.findall(r'"(katex/dist/fonts/[^"]+)"', (SOURCES / "src" / "fonts.js").read_text())
    katex = f"data:text/javascript,export {{ katex as default }} from '{HERE}/static/einnet.js'"
    imports = {"katex": katex, **dict.fromkeys(fonts, FONT)}
    tests = "".join(f"await import('/test/{file.name}');" for file in files)
    return (
        "<!doctype html><link rel='icon' href='data:,'><link rel='stylesheet' href='/static/einnet.css'>"
        f"<script type='importmap'>{json.dumps({'imports': imports})}</script>"
        f"<script>window.told = (async () => {{ {tests}"
        "return (await import('/test/check.js')).run(); })();</script>"
    )


HOST = """while (!window.python) await new Promise((done) => setTimeout(done, 10));  // a frame gets it late
const names = new Set(['get', 'set', 'save_changes', 'on', 'off', 'send']);
const state = await python({ do: 'state' }), listeners = [];
const take = ({ traits, messages }) => {
  Object.assign(state, traits);
  for (const name of Object.keys(traits)) emit(`change:${name}`);
  for (const message of messages) emit('msg:custom', message, []);
};
const emit = (event, ...values) => listeners.filter(([name]) => name === event).forEach(([, call]) => call(...values));
const model = new Proxy({
  get: (name) => state[name],
  set: (name, value) => { state[name] = value; emit(`change:${name}`); },
  save_changes: () => {},
  on: (event, call) => listeners.push([event, call]),
  off: (event, call) => listeners.splice(listeners.findIndex(([name, each]) => name === event && each === call), 1),
  send: (message) => python(message).then(take),
}, { get: (held, name) => { if (!names.has(name)) throw new Error(`model.${String(name)}`); return held[name]; } });
const root = document.getElementById('host').attachShadow({ mode: 'open' });
const style = document.createElement('style'), el = document.createElement('div');
style.textContent = await python({ do: 'css' });
root.append(style, el);
const code = new Blob([await python({ do: 'code' })], { type: 'text/javascript' });
const { default: face } = await import(URL.createObjectURL(code));
await face.initialize?.({ model });
const leave = await face.render({ model, el });
window.leave = () => { leave(); return listeners.length; };"""
"""A host of widgets that has the members which anywidget's front-end module contract names, and no other."""

WEBVIEW = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
"""The content security policy of an editor's web view."""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(browser() is None, reason="no chromium on the path (Debian's package chromium)")
def test_the_built_module_runs_in_any_host_of_the_contract() -> None:
    pytest.importorskip("playwright", reason="the Python package playwright is not installed")
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    import einnet_explore as ee
    import einnet_widgets
    from einnet_widgets.face import PANELS
    from tests.widgets_kit import CONV, told

    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    sent, names = told(face), (*PANELS, "key", "panels", "label", "head", "notice")
    files = {"code": STATIC / "einnet.js", "css": STATIC / "einnet.css"}

    def python(_: object, message: dict[str, Any]) -> Any:
        if message["do"] in files:
            return files[message["do"]].read_text()
        before = {} if message["do"] == "state" else {name: getattr(face, name) for name in names}
        if message["do"] != "state":
            face.receive(message)
        after = {name: getattr(face, name) for name in names}
        traits = {name: value for name, value in after.items() if name not in before or before[name] != value}
        messages = [sent.pop(0)[0] for _ in range(len(sent))]
        return {"traits": traits, "messages": messages} if before else traits

    frame = f"<meta http-equiv='Content-Security-Policy' content=\"{WEBVIEW}\"><div id='host'></div>"
    inside = escape(f"{frame}<script type='module'>{HOST}</script>")
    with visit(1400, 1200) as visiting:
        page = visiting.page
        page.expose_binding("python", python)
        page.set_content(
            f"<iframe sandbox='allow-scripts' style='width:100%;height:1100px' srcdoc='{inside}'></iframe>"
        )
        host = page.frame_locator("iframe")
        host.locator(".ein-main .katex").first.wait_for()
        split = host.locator(".ein-match[data-rule=summation_splitting]", has_text="outer = r, s").first
        split.hover()
        host.locator(".ein-preview .katex").first.wait_for()
        split.click()
        host.locator(".ein-node.here b", has_text="E1").wait_for()
        assert [step.match.rule.name for step in session.derivation.steps] == ["summation_splitting"]
        host.locator(".ein").focus()
        page.keyboard.press("u")
        host.locator(".ein-node.here b", has_text="E0").wait_for()
        host.locator(".ein-graph svg").first.wait_for()
        assert host.locator(".ein-notice.error").count() == 0
        fonts = page.frames[1].evaluate("() => [...document.fonts].filter(f => f.status === 'loaded').length")
        assert fonts  # from the module: nothing else may be loaded
        assert page.frames[1].evaluate("() => window.leave()") == 0
        assert visiting.strangers == [] and visiting.errors == []


def test_the_bundle_is_built_from_these_sources() -> None:
    recorded = json.loads((STATIC / "sources.json").read_text())
    names = ["build.mjs", "package.json", *(f"src/{p.name}" for p in sorted((SOURCES / "src").iterdir()))]
    assert recorded == {name: sha256((SOURCES / name).read_bytes()).hexdigest() for name in names}
    assert len((STATIC / "einnet.js").read_bytes()) < 600_000
