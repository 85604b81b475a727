"""Does every link of the built site lead somewhere, and does it need nothing from other servers?"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself. Only an `a` waits for the reader."""


class Part(NamedTuple):
    """A piece of code and the classes of what it stands in."""

    text: str
    classes: tuple[str, ...]


class Page(HTMLParser):
    """The links and anchors of a page, and its blocks of code: each as lines, each line as parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.codes: list[list[list[Part]]] = []
        self._inside: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given and given.get("rel") != "canonical":
            self.loaded.append(given[LOADED[tag]])
        if tag == "span" and given.get("id", "").startswith("__span-"):
            if given["id"].endswith("-1"):
                self.codes.append([])
            self.codes[-1].append([])
            self._inside = []
        elif tag == "span" and self._inside is not None:
            self._inside.append(given.get("class", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._inside is not None:
            if self._inside:
                self._inside.pop()
            else:
                self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.codes[-1][-1].append(Part(data, tuple(self._inside)))


def problems(site: Path) -> list[str]:
    """Links and pictures that lead nowhere, and things fetched from elsewhere. Pages of other servers are not asked."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    return [problem for path in sorted(pages) if path.name != "404.html" for problem in _of(site, path, pages)]


def _of(site: Path, path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    page, name = pages[path], path.relative_to(site)
    for address in page.loaded:
        if urlsplit(address).netloc:
            yield f"{name} loads {address}"
    for address in (*page.links, *page.loaded):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"{name}: {address} is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{name}: {address} has no such anchor"
