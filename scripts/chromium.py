"""A page in real Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-port=0",
)
_PAINTED = """
    new Promise((found) => {
        const look = () => {
            const [first] = performance.getEntriesByName("first-contentful-paint");
            if (first) found(first.startTime);
        };
        new PerformanceObserver(look).observe({ type: "paint", buffered: true });
    })
"""
_LOADED = """
    [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .reduce((sum, one) => sum + one.transferSize, 0)
"""


class Page:
    """A page; `troubles` has the exceptions and refused loads that its console told of."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.troubles: list[Any] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.troubles.append(message["params"])
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def run(self, script: str) -> Any:
        """Return the value of a script, awaited if it is a promise."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Return the value of an expression as soon as it is true: looked at whenever the page changes.

        An expression that raises counts as not yet true, since it may name an element that is not there yet.
        """
        return await self.run(
            f"""new Promise((found) => {{
                const valued = () => {{ try {{ return ({condition}); }} catch {{ return undefined; }} }};
                const look = () => {{ const value = valued(); if (value) {{ seen.disconnect(); found(value); }} }};
                const seen = new MutationObserver(look);
                seen.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
                look();
            }})"""
        )


@contextlib.contextmanager
def started() -> Iterator[str]:
    """A browser; its address for `opened`."""
    assert CHROMIUM is not None, "there is no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            told = Path(profile) / "DevToolsActivePort"
            while not (told.exists() and told.read_text().count("\n")):
                time.sleep(0.01)
                assert process.poll() is None, "Chromium ended"
            yield f"127.0.0.1:{told.read_text().split()[0]}"
        finally:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def opened(
    browser: str, url: str, width: int = 1360, height: int = 900, scheme: str = "light"
) -> AsyncIterator[Page]:
    """A page in a tab of its own. Nothing in it moves by itself: without a GPU, each frame takes processor time.

    `scheme` is the user's preferred colour scheme, `light` or `dark`.
    """
    tab = json.loads(_told(browser, "new", "PUT"))
    try:
        async with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            preferred = {"prefers-reduced-motion": "reduce", "prefers-color-scheme": scheme}
            features = [{"name": name, "value": value} for name, value in preferred.items()]
            await page.call("Emulation.setEmulatedMedia", features=features)
            await page.call("Page.navigate", url=url)
            yield page
    finally:
        _told(browser, f"close/{tab['id']}")


def _told(browser: str, order: str, method: str = "GET") -> bytes:
    """Tell a browser to open or close a tab. Return what it answers."""
    request = urllib.request.Request(f"http://{browser}/json/{order}", method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
    return found


async def first_paint(browser: str, url: str) -> tuple[float, int]:
    """Return after how many milliseconds a browser that has nothing of a page paints its first words, by its own clock,
    and how many bytes it has loaded for it by then."""
    async with opened(browser, "about:blank") as page:
        await page.call("Network.enable")
        await page.call("Network.setCacheDisabled", cacheDisabled=True)
        await page.call("Page.bringToFront")
        await page.call("Page.navigate", url=url)
        milliseconds: float = await page.run(_PAINTED)
        num_bytes: int = await page.run(_LOADED)
    return milliseconds, num_bytes
