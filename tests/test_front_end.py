"""The front end's own tests, from its sources and in the browser itself: nothing to install, no Node."""

import json
import re
from hashlib import sha256
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


def test_the_bundle_is_built_from_these_sources() -> None:
    recorded = json.loads((STATIC / "sources.json").read_text())
    names = ["build.mjs", "package.json", *(f"src/{p.name}" for p in sorted((SOURCES / "src").iterdir()))]
    assert recorded == {name: sha256((SOURCES / name).read_bytes()).hexdigest() for name in names}
    assert len((STATIC / "einnet.js").read_bytes()) < 600_000
