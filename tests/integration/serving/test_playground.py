"""Tools, images and policies on the web page, in real Chromium."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

import pageant
from pageant.actors.client.cast import HTTP
from pageant.scripts import chromium
from tests.integration.serving.axe import broken_rules
from tests.integration.test_images_in_chats import SMALL, Chatting
from tests.vision_models import images, png

SECONDS_MAX = 240  # for what hangs
READY = "document.querySelector('input[name=model]')"
ANSWERED = "document.querySelector('.answer')?.getAttribute('aria-busy') === 'false'"
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
CALL = 'SAY(<tool_call>\n{"name": "look_up", "arguments": {"key": 1}}\n</tool_call>)SAY'
RESULT = "The key is old. SAY(It is 42)SAY"
NOTE_SENT = """
    window.sent = [];
    const fetched = window.fetch;
    window.fetch = (path, options) => {
        if (options?.body) window.sent.push(JSON.parse(options.body).messages.map(({ role }) => role));
        return fetched(path, options);
    };
"""
"""Has the page note the roles of the messages that it sends."""
SENT = "window.sent"

pytestmark = pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser():
    with chromium.started() as browser:
        yield browser


def ask(text: str, tokens: int, tools: str = "") -> str:
    """Return a script that sends a question, greedily."""
    values = {"temperature": 0, "max_tokens": tokens, "tools": tools, "prompt": text}
    fill = "".join(
        f"document.getElementById('{name}').value = {json.dumps(value)};" for name, value in values.items()
    )
    return fill + "document.getElementById('form').requestSubmit();"


async def test_calls_of_tools_are_shown_and_tools_that_are_no_json_are_not_sent(browser, parrot):
    url = str(parrot("hermes").base_url).removesuffix("/").removesuffix("/v1")
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url) as page:
        await page.until(READY)
        await page.run(NOTE_SENT)
        for wrong, why in (("[{", "no JSON"), ('{"type": "function"}', "expected a JSON array")):
            await page.run(ask("Look it up", 60, wrong))
            assert why in await page.run("document.getElementById('tools').validationMessage")
        assert not await page.run("document.querySelector('.question') || document.querySelector('.answer')")
        await page.run(ask(CALL, 60, json.dumps(TOOLS)))
        await page.until(ANSWERED)
        assert await page.run("document.querySelector('.call').textContent") == 'look_up({"key": 1})'
        assert (await page.run("document.querySelector('.answer .foot').textContent")).startswith(
            "tool_calls"
        )
        assert await broken_rules(page) == []
        await page.run("document.querySelector('.results').requestSubmit()")
        assert await page.run("document.querySelectorAll('.answer').length") == 1, (
            "a result is asked for first"
        )
        await page.run(
            f"document.querySelector('.result textarea').value = {json.dumps(RESULT)};"
            "document.querySelector('.results').requestSubmit();"
        )
        await page.until("document.querySelectorAll('.answer')[1]?.getAttribute('aria-busy') === 'false'")
        told = "document.querySelectorAll('.answer')[1].querySelector('.text').textContent"
        assert await page.run(told) == "It is 42"
        assert await page.run("document.querySelector('.result output').textContent") == RESULT
        assert not await page.run("document.querySelector('.results button')")
        roles = await page.run(SENT)
        assert roles == [["user"], ["user", "assistant", "tool"]]
        await page.run(ask("SAY(And now?)SAY", 20))
        await page.until("document.querySelectorAll('.answer')[2]?.getAttribute('aria-busy') === 'false'")
        assert (await page.run(SENT))[-1] == ["user", "assistant", "tool", "assistant", "user"]
        await page.run(ask(CALL, 60, json.dumps(TOOLS)))
        await page.until("document.querySelector('.results button')")
        await page.run(ask("SAY(Never mind)SAY", 20))
        await page.until("document.querySelectorAll('.answer')[4]?.getAttribute('aria-busy') === 'false'")
        assert not await page.run("document.querySelector('.results button')"), "it was left without a result"
        assert (await page.run(SENT))[-1] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
            "user",
        ]
        assert await broken_rules(page) == []


async def test_images_go_to_models_that_take_them(browser, tmp_path_factory, url):
    folder = tmp_path_factory.mktemp("seeing")
    llava = Chatting(Path(folder))
    picture = images()[0]
    (folder / "seen.png").write_bytes(png(picture))
    with pageant.LLM(llava.path, actors={HTTP: {"options": {"port": 0, "demo": True}}}, **SMALL) as llm:
        seeing = llm._session.served_at().split()[-1]
        async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, seeing) as page:
            await page.until("!document.getElementById('attach').hidden")
            root = (await page.call("DOM.getDocument"))["root"]["nodeId"]
            found = await page.call("DOM.querySelector", nodeId=root, selector="#images")
            await page.call("DOM.setFileInputFiles", files=[str(folder / "seen.png")], nodeId=found["nodeId"])
            await page.run(ask("what is it?", 8))
            await page.until(ANSWERED)
            said = await page.run("document.querySelector('.answer .text').textContent")
            assert said == llava.said("[user]<image>what is it?[assistant]", [picture], 8)
            shown = "document.querySelector('.question img')"
            assert await page.run(f"{shown}.alt") == "Image 1"
            assert (await page.run(f"{shown}.src")).startswith("data:image/png;base64,")
            assert page.troubles == []
    async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url) as page:
        await page.until(READY)
        assert await page.run("document.getElementById('attach').hidden")


async def test_a_policy_is_swapped_while_a_chat_streams(browser, start):
    url = start(demo=True).served_at().split()[-1]
    body = {"messages": [{"role": "user", "content": "Explain lambda"}], "temperature": 0, "max_tokens": 150}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        asked = await http.post("/v1/chat/completions", json=body)
        for wrong in ("name=scheduler&policy=mine:Own", "name=blocks&policy=fair", "name=scheduler"):
            assert (await http.post(f"/schedulers/policy?{wrong}")).status_code == 400
        assert (await http.get("/schedulers")).json()["schedulers"] == {"scheduler": "fcfs"}
        async with asyncio.timeout(SECONDS_MAX), chromium.opened(browser, url) as page:
            await page.until("document.querySelector('[aria-label=\"Policy of scheduler\"]')")
            await page.run(ask("Explain lambda", 150))
            await page.until("document.querySelector('.answer .text')?.textContent.length > 5")
            await page.run(
                "{const choice = document.querySelector('[aria-label=\"Policy of scheduler\"]');"
                "choice.value = 'fair'; choice.dispatchEvent(new Event('change'));}"
            )
            await page.until("document.getElementById('order').textContent.endsWith('has the policy fair')")
            await page.until(ANSWERED)
            right = asked.json()["choices"][0]["message"]["content"]
            assert await page.run("document.querySelector('.answer .text').textContent") == right
            assert await broken_rules(page) == []
        assert (await http.get("/schedulers")).json()["schedulers"] == {"scheduler": "fair"}
