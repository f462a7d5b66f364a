"""Files of the web page as HTTP responses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from litestar import Response

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time whether its copy is still right, so that an update is seen at once.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Attributes:
        tag: its ETag, a hash of its bytes.
    """

    body: bytes
    media_type: str
    tag: str

    def respond(self, known_tags: str = "", **headers: str) -> Response[Any]:
        """Return the file, or 304 where the browser's copy is among `known_tags` (the header If-None-Match)."""
        named = {tag.strip().removeprefix("W/") for tag in known_tags.split(",")}
        headers = {**_HEADERS, "etag": self.tag, **headers}
        if named & {self.tag, "*"}:
            return Response(None, status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def page_files() -> dict[str, PageFile]:
    """Read the files of the page, by name."""
    folder = files("pageant.actors.http.page") / "static"
    return {
        one.name: _page_file(one.name, one.read_bytes())
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in MEDIA_TYPES
    }


def _page_file(name: str, body: bytes) -> PageFile:
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    return PageFile(body, MEDIA_TYPES[name.rpartition(".")[2]], tag)
