"""The docs as a site: it builds without a warning, its links lead somewhere, and the home page is near every page."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import deque
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import pageant

ROOT = Path(pageant.__file__).parent
DOCS = ROOT / "docs"
CLICKS_MAX = 2

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: the extra `docs` has it"
)


class Page(HTMLParser):
    """Links, anchors and text of a built page. `links` are those of its article; the menu's are left out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.sources: list[str] = []
        self.text = ""
        self._in_article = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self._in_article |= tag == "article"
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found and self._in_article:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and "src" in found:
            self.sources.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon"):
            self.sources.append(found["href"])

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"

    def handle_data(self, data: str) -> None:
        if self._in_article:
            self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """The pages, by their paths."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def _target(page: Path, link: str) -> tuple[Path, str] | None:
    """Return the file and the anchor that a link leads to; None if it leads out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    return ((page.parent / unquote(parts.path)).resolve() if parts.path else page), unquote(parts.fragment)


def test_every_page_of_docs_is_a_page_of_the_site(site: Path, pages: dict[Path, Page]):
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert {path.relative_to(site) for path in pages} == written


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Page]):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            target = _target(path, link)
            if target is None:
                continue
            file, anchor = target
            known = pages[file].anchors if file in pages else set()
            if not file.is_file() or (anchor and anchor not in known):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []
    assert sum(len(page.links) for page in pages.values()) > 300


def test_two_clicks_lead_from_the_home_page_to_every_page(site: Path, pages: dict[Path, Page]):
    """Follow the links in the pages' own text, as a reader on a phone does, who sees no menu."""
    home = site / "index.html"
    clicks, pending = {home: 0}, deque([home])
    while pending:
        path = pending.popleft()
        for link in pages[path].links:
            target = _target(path, link)
            if target is not None and target[0] in pages and target[0] not in clicks:
                clicks[target[0]] = clicks[path] + 1
                pending.append(target[0])
    far = [str(path.relative_to(site)) for path in pages if clicks.get(path, CLICKS_MAX + 1) > CLICKS_MAX]
    assert far == []


def test_a_page_fetches_nothing_from_elsewhere(pages: dict[Path, Page]):
    outside = [source for page in pages.values() for source in page.sources if urlsplit(source).netloc]
    assert outside == []


def test_the_reference_has_every_public_name_and_its_docstring(site: Path, pages: dict[Path, Page]):
    reference = [page for path, page in pages.items() if path.parent.name == "reference"]
    anchors = set().union(*(page.anchors for page in reference))
    same = {"AsyncLLMEngine", "GuidedDecodingParams", "__version__"}  # other names of classes that are there
    assert {name for name in pageant.__all__ if f"pageant.{name}" not in anchors} == same
    engines = pages[site / "reference" / "engines.html"].text
    assert "A model, served by a topology of actors in the background." in engines
    assert "max_num_seqs" in engines


def test_the_search_finds_pages_by_their_words(site: Path, pages: dict[Path, Page]):
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {one["location"].partition("#")[0] for one in index["docs"]}
    assert {str(path.relative_to(site)) for path in pages if path.name != "index.html"} <= places
    assert any("ROUTER" in one["text"] or "mailbox" in one["text"] for one in index["docs"])
