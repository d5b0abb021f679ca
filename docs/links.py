"""Links of a site of HTML pages: to files and places that do not exist, and to scripts and styles of other hosts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "iframe", "source", "object"}
"""Elements whose ``src`` or ``data`` a browser loads."""


class Page(HTMLParser):
    """The links of an HTML page, and the names of its places."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and places of an element."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        links = [found[name] for name in ("href", "src", "data") if name in found]
        self.links += links
        if tag in LOADED or (tag == "link" and found.get("rel") != "canonical"):
            self.loaded += links


def broken_links(site: Path) -> list[str]:
    """Return a line for each link of the pages of *site*, a resolved path, that leads nowhere or loads from a host."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    lines = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme in ("", "http", "https"):
                    lines.append(f"{path.relative_to(site)}: {link} is loaded from another host")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists():
                lines.append(f"{path.relative_to(site)}: there is no {link}")
            elif place and target in pages and place not in pages[target].places and not place.startswith("/"):
                lines.append(f"{path.relative_to(site)}: there is no place {link}")
    return lines
