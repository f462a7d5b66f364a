"""Accessibility of the web page in real Chromium: axe-core finds nothing serious, in light, in dark and on a phone."""

from __future__ import annotations

import asyncio

import pytest

from pageant.scripts import chromium
from tests.integration.serving.axe import broken_rules

SECONDS_MAX = 240  # for what hangs; a browser that shares its cores with other tests may take a minute
DESK, PHONE = (1360, 900), (390, 844)
ASK = """
document.getElementById("max_tokens").value = 8;
document.getElementById("temperature").value = 1;
document.getElementById("prompt").value = "Explain lambda";
document.getElementById("form").requestSubmit();
document.getElementById("parameters").open = true;
"""
POINT = "document.querySelector('.token').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"

pytestmark = pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser():
    with chromium.started() as browser:
        yield browser


@pytest.fixture(scope="module")
def demo_url(start):
    """The address of a server whose page can do all that a page can do."""
    apart = {"nodes": {"front": {}, "words": {"process": True}}, "actors": {"detokenizer": {"node": "words"}}}
    return start(apart, demo=True, admin_routes=True).served_at().split()[-1]


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(browser, demo_url, scheme, size):
    opened = chromium.opened(browser, demo_url, *size, scheme)
    async with asyncio.timeout(SECONDS_MAX), opened as page:
        await page.until("document.querySelector('input[name=model]')?.value === 'demo'")
        assert await broken_rules(page) == []
        await page.run(ASK)
        await page.until("document.querySelector('.answer')?.getAttribute('aria-busy') === 'false'")
        await page.run(POINT)
        assert await broken_rules(page) == []
        await page.run("document.querySelector('.views button[data-view=cast]').click()")
        await page.until("document.querySelector('[aria-label=\"Kill detokenizer\"]')?.offsetParent")
        await page.until("document.querySelector('.pool canvas')?.getAttribute('aria-label')")
        assert await broken_rules(page) == []


async def test_axe_would_find_what_is_serious(browser, demo_url):
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, demo_url) as page:
        await page.until("document.querySelector('input[name=model]')?.value === 'demo'")
        await page.run("document.querySelector('label[for=prompt]').remove()")
        await page.run("document.getElementById('prompt').removeAttribute('placeholder')")
        await page.run("document.getElementById('clear').style.color = '#ddd'")
        assert {one["id"] for one in await broken_rules(page)} == {"label", "color-contrast"}
