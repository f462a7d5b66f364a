"""`python -m pageant.scripts.page_picture`: takes the picture of the web page that docs/page.md shows.

A server of the demo model answers a question in Chromium. The picture is taken while the answer streams, when the
timeline has steps of it.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Annotated

import typer

from pageant.scripts import chromium
from pageant.scripts.server_process import ServerProcess, free_port

WIDTH, HEIGHT = 1360, 1300
"""Of the picture, in pixels: as high as chat, cast, blocks and timeline."""
QUALITY = 80
"""Of WebP, in percent."""
SECONDS_MAX = 120
ASK = """
document.getElementById("temperature").value = 0;
document.getElementById("max_tokens").value = 1500;
document.getElementById("ignore_eos").checked = true;
document.getElementById("prompt").value = "What is a list?";
document.getElementById("form").requestSubmit();
"""
IS_READY = "document.getElementById('told').textContent === 'all actors are up'"
SHOWS_MUCH = """
    document.querySelector('.answer .text').textContent.length > 500
    && /[1-9][0-9]{2} steps/.test(document.querySelector(".steps p").textContent)
"""


def take(
    file: Annotated[Path, typer.Argument(help="The picture, in WebP.")] = Path("docs/page.webp"),
) -> None:
    """Take the picture of the web page."""
    port = free_port()
    command = [sys.executable, "-m", "pageant", "serve", "--demo", "--port", str(port)]
    with ServerProcess("pageant", command, port) as server, chromium.started() as browser:
        file.write_bytes(asyncio.run(_picture(browser, server.url)))


async def _picture(browser: str, url: str) -> bytes:
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url, WIDTH, HEIGHT) as page:
        await page.until(IS_READY)
        await page.run(ASK)
        await page.until(SHOWS_MUCH)
        taken = await page.call("Page.captureScreenshot", format="webp", quality=QUALITY)
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    typer.run(take)
