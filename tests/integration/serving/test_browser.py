"""The web page in real Chromium: a chat streams, the cast shows the actors, and a killed one stops nothing."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from pageant.scripts import chromium

CHAT = {"messages": [{"role": "user", "content": "Explain lambda"}], "temperature": 0, "ignore_eos": True}
TOKENS = 200
SECONDS_MAX = 240  # for what hangs; a browser that shares its cores with other tests may take a minute
ASK = """
document.getElementById("temperature").value = 0;
document.getElementById("max_tokens").value = TOKENS;
document.getElementById("ignore_eos").checked = true;
document.getElementById("prompt").value = "Explain lambda";
document.getElementById("form").requestSubmit();
""".replace("TOKENS", str(TOKENS))
KILL = """
document.querySelector('[aria-label="Kill detokenizer"]').click();
document.querySelector('.answer').getAttribute('aria-busy');
"""
TEXT = "document.querySelector('.answer .text').textContent"


pytestmark = pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser():
    with chromium.started() as browser:
        yield browser


async def test_a_chat_goes_on_while_an_actor_is_killed_and_the_cast_shows_it(browser, start):
    apart = {"nodes": {"front": {}, "words": {"process": True}}, "actors": {"detokenizer": {"node": "words"}}}
    url = start(apart, demo=True).served_at().split()[-1]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        asked = await http.post("/v1/chat/completions", json=CHAT | {"max_tokens": TOKENS})
        seen = (await http.get("/statistics")).json()
    right = asked.json()["choices"][0]["message"]["content"]
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url) as page:
        await page.until("document.querySelector('[aria-label=\"Kill detokenizer\"]')?.textContent")
        shown = await page.run(
            "[...document.querySelectorAll('.actor')].map((one) => one.dataset.actor).sort()"
        )
        assert shown == sorted(actor["name"] for actor in seen["actors"])
        blocks = seen["pools"]["blocks"]["num_blocks"]
        await page.until(f"document.querySelector('.pool p').textContent.includes('of {blocks} blocks')")
        await page.run(ASK)
        begun = await page.until(
            f"document.querySelector('.answer .text')?.textContent.length > 20 && {TEXT}"
        )
        streaming = await page.run(KILL)
        assert streaming == "true"
        restarts = "document.querySelector('[data-actor=detokenizer] .restarts').textContent"
        assert await page.until(restarts) == "↻ 1"
        await page.until("document.querySelector('.answer').getAttribute('aria-busy') === 'false'")
        text = await page.run(TEXT)
        assert text.startswith(begun) and text == right
        foot = await page.run("document.querySelector('.answer .foot').textContent")
        assert foot.startswith(f"length · {TOKENS} tokens")
        # The probabilities of a token, by pointing at it.
        await page.run(
            "document.querySelector('.token').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
        )
        assert "%" in await page.run("document.getElementById('tip').textContent")
        assert page.troubles == []


async def test_the_page_fits_a_phone_and_names_what_it_has(browser, url):
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url, 390, 844) as page:
        await page.until("document.querySelector('input[name=model]')?.value === 'demo'")
        await page.run("document.querySelector('.views button[data-view=cast]').click()")
        await page.until("document.querySelector('[data-actor=scheduler]')?.offsetParent")
        await page.until("document.querySelector('.pool canvas')?.getAttribute('aria-label')")
        assert await page.run("document.documentElement.scrollWidth") == 390
        # Everything that one can operate has a name for a screen reader, and is reached by the keyboard.
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        roles = {"button", "textbox", "checkbox", "spinbutton", "link", "image", "region"}
        found = [one for one in tree if not one["ignored"] and one["role"]["value"] in roles]
        assert len(found) > 5 and [one for one in found if not one.get("name", {}).get("value")] == []


STEPS = """
(() => {
    const cells = (row) => [...row.cells].map((cell) => +cell.textContent);
    const rows = [...document.querySelectorAll('.steps tbody tr')].map(cells);
    const sum = (place) => rows.reduce((all, row) => all + row[place], 0);
    return {steps: sum(1), rows: rows.reduce((all, row) => all + row[1] * row[2], 0), tokens: sum(3) + sum(4),
            drafted: sum(5), accepted: sum(6)};
})()
"""


async def test_the_timeline_agrees_with_the_counters(browser, start):
    speculation = {"speculation": {"method": "ngram", "tokens": 3, "adaptive": False}}
    url = start(speculation, demo=True).served_at().split()[-1]
    repeats = {"role": "user", "content": "spam spam spam spam spam spam spam spam spam spam"}
    body = CHAT | {"messages": [repeats], "max_tokens": 60}
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url) as page:
        await page.until("document.querySelector('.steps p')?.textContent.endsWith('no step yet')")
        await page.run("document.querySelector('.steps details').open = true")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            await http.post("/v1/chat/completions", json=body)
            seen = (await http.get("/statistics")).json()
        executor, counters = seen["executors"]["executor/0"], seen["schedulers"]["scheduler"]["counters"]
        assert executor["steps"] < 240 and counters["drafts_proposed"]
        total = f"{executor['steps']} steps, "
        await page.until(f"document.querySelector('.steps p').textContent.includes('executor/0: {total}')")
        assert await page.run(STEPS) == {
            **{name: executor[name] for name in ("steps", "rows", "tokens")},
            "drafted": counters["drafts_proposed"],
            "accepted": counters["drafts_accepted"],
        }
        label = await page.run("document.querySelector('.steps canvas').getAttribute('aria-label')")
        assert label == await page.run("document.querySelector('.steps p').textContent")
        assert page.troubles == []


async def test_a_browser_that_was_asked_for_the_key_follows_the_cast(browser, start):
    """The WebSocket takes the password that the browser's user gave for the page."""
    url = start(api_keys=("secret",)).served_at().split()[-1]
    async with (
        asyncio.timeout(SECONDS_MAX),
        chromium.opened(browser, url.replace("//", "//anybody:secret@")) as page,
    ):
        await page.until("document.querySelector('[data-actor=detokenizer]')")
        await page.until("document.getElementById('status').textContent === 'Live'")
