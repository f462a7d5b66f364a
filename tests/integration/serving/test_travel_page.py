"""The page over a recording in real Chromium: its slider shows at every step what `--until` prints."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx
import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import BadRequest
from pageant.scripts import chromium
from pageant.scripts.commands import travel
from pageant.scripts.replay import states as module
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.states import RecordedStates
from pageant.scripts.replay.travel import as_data, state_at
from pageant.scripts.replay.viewer import serving
from tests.integration.serving.axe import broken_rules
from tests.integration.serving.conftest import DEMO

SECONDS_MAX = 240  # for what hangs
# Few blocks, so that some requests wait and some are preempted, and an equal beginning, so that blocks are shared.
SETTINGS = {"placement": "one", "threads": 1, "num_blocks": 24, "max_num_seqs": 3, "max_steps_per_plan": 1}
PROMPTS = [[*range(40, 72), *range(80 + 20 * own, 90 + 20 * own)] for own in range(6)]
SHOWN = """
(() => {
    const cells = (place) => [...document.querySelectorAll(`#${place} tbody tr`)].map(
        (row) => [...row.cells].map((cell) => cell.textContent));
    return {plan: cells("plan"), queue: cells("queue").map((row) => row[0]),
            told: document.getElementById("told").textContent,
            blocks: document.querySelector("#blocks p").textContent};
})()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("travel") / "made.recording"

    async def record() -> None:
        async with pageant.Engine(DEMO, **SETTINGS) as engine, engine.record(path):
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
            await asyncio.gather(*(engine.complete(prompt, params) for prompt in PROMPTS))

    asyncio.run(record())
    return path


def test_states_in_any_order_are_those_of_until(recording, monkeypatch):
    monkeypatch.setattr(module, "KEPT_EVERY", 7)
    load = read_load(recording)
    states = RecordedStates(recording, load)
    order = [random.Random(3).randint(1, len(states)) for _ in range(60)]
    for step in (*order, 1, len(states), len(states) - 1):
        assert states.at(step) == state_at(recording, load, step)
    assert any(states.at(step).queue for step in order) and any(
        states.at(step).blocks.shared for step in order
    )
    for wrong in (0, len(states) + 1):
        with pytest.raises(BadRequest, match=f"has {len(states)} steps"):
            states.at(wrong)


async def test_the_page_says_what_is_wrong_with_a_step(recording):
    load = read_load(recording)
    states = RecordedStates(recording, load)
    async with serving(recording.name, load, states) as url, httpx.AsyncClient(base_url=url) as http:
        told = (await http.get("/recording")).json()
        assert (told["steps"], told["requests"], told["num_blocks"]) == (len(states), len(PROMPTS), 24)
        for wrong in ("0", "x", "-1", str(len(states) + 1)):
            refused = await http.get(f"/recording/{wrong}")
            assert refused.status_code == 400 and "1 " in refused.json()["error"]["message"]
        assert (await http.get("/recording/2")).json() == json.loads(json.dumps(as_data(states.at(2))))
        assert (await http.get("/")).text.startswith("<!doctype html>")


@pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no Chromium")
async def test_the_slider_shows_what_until_prints(recording, capsys):
    load = read_load(recording)
    states = RecordedStates(recording, load)
    with chromium.started() as browser:
        async with (
            asyncio.timeout(SECONDS_MAX),
            serving(recording.name, load, states) as url,
            chromium.opened(browser, url, scheme="dark") as page,
        ):
            await page.until("document.body?.dataset.step === '1'")
            for step in (len(states) // 2, 3, len(states)):
                await page.run(
                    f"document.getElementById('slider').value = {step};"
                    "document.getElementById('slider').dispatchEvent(new Event('input'));"
                )
                await page.until(f"document.body?.dataset.step === '{step}'")
                shown = await page.run(SHOWN)
                capsys.readouterr()
                travel.until(recording, {}, step, speed=1.0, replica=None, json=Path("-"))
                state = json.loads(capsys.readouterr().out)["state"]
                rows = [
                    (row["request"], row["start"], row["start"] + row["tokens"])
                    for row in state["decision"]["rows"]
                ]
                assert [tuple(map(int, row[:3])) for row in shown["plan"]] == rows
                assert list(map(int, shown["queue"])) == [one["request"] for one in state["queue"]]
                assert shown["told"].startswith(f"Step {step}, ")
                blocks = state["blocks"]
                assert shown["blocks"] == (
                    f"{blocks['held']} blocks held of 24, {blocks['free']} in no table; "
                    f"{blocks['shared']} in more than one table"
                )
            assert await broken_rules(page) == []
            assert page.troubles == []
