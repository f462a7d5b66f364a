"""Whatever process is killed while images are asked about, each answer is the one that it would have been."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pageant
from tests.integration.test_images_in_chats import Chatting
from tests.kept_encoder import keep
from tests.vision_models import images, png

SETTINGS: dict[str, Any] = {
    "progress": False,
    "threads": 1,
    "dtype": "float32",
    "num_blocks": 60,
    "max_num_seqs": 4,
    "heartbeat_seconds": 0.5,
    "suspicion_seconds": 3.0,
}
PARAMS = pageant.SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
ENCODER = {"actors": {"encoder": {"class": "tests.kept_encoder:KeptEncoder"}}}


def prompts(count: int) -> list[dict[str, Any]]:
    """Return prompts with one to three images, each with another text."""
    found = []
    for number in range(count):
        pictures = images()[: 1 + number % 3]
        text = f"{number}: " + "".join(f"<image> and {index}" for index in range(len(pictures)))
        found.append({"prompt": text, "multi_modal_data": {"image": pictures}})
    return found


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Chatting:
    llava = Chatting(Path(tmp_path_factory.mktemp("surviving")))
    keep(llava.path, [png(picture) for picture in images()])
    return llava


@pytest.fixture(scope="module")
def right(llava: Chatting) -> list[str]:
    with pageant.LLM(llava.path, placement="one", **ENCODER, **SETTINGS) as llm:
        found = [one.outputs[0].text for one in llm.generate(prompts(24), PARAMS)]
    first = prompts(1)[0]
    assert found[0] == llava.said(first["prompt"], first["multi_modal_data"]["image"], 40)
    return found


@pytest.fixture(scope="module")
def llm(llava: Chatting) -> Iterator[pageant.LLM]:
    with pageant.LLM(llava.path, placement="each", **ENCODER, **SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("dies", ["tokenizer", "scheduler", "blocks", "executor"])
def test_no_answer_about_an_image_is_lost_or_changed(llm: pageant.LLM, right: list[str], dies: str) -> None:
    pid = next(one.pid for one in llm.statistics() if one.node == dies)
    before = llm.scheduler_statistics().counters["ended"]
    found: list[str] = []

    def ask() -> None:
        found.extend(one.outputs[0].text for one in llm.generate(prompts(24), PARAMS))

    running = threading.Thread(target=ask)
    running.start()
    while dies != "tokenizer" and llm.scheduler_statistics().counters["ended"] < before + 3:
        assert running.is_alive()
    os.kill(pid, signal.SIGKILL)
    running.join(timeout=60)
    assert not running.is_alive() and found == right
    assert pid not in [one.pid for one in llm.statistics()]
