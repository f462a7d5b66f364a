"""Prompts with images whose blocks come back from the host, the disk and a store: transformers is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pageant
from pageant.actors.blocks.costs import MoveCosts
from pageant.protocol.storing import GetStoreStatistics
from tests.integration.test_images import ENGINE
from tests.vision_models import Seeing

GREEDY = pageant.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing("llava", Path(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def asked(llava: Seeing) -> list[tuple[dict[str, Any], list[int]]]:
    """Prompts that differ in their images alone, each with the tokens that follow it."""
    token_ids = llava.prompt([5, 9, 7, "image", 11, 30, "image", 8])
    found = []
    for seed in range(8):
        values = np.random.default_rng(seed)
        pictures = [values.integers(0, 255, (56, 56, 3), dtype=np.uint8) for _ in range(2)]
        prompt = {"prompt_token_ids": token_ids, "multi_modal_data": {"image": pictures}}
        found.append((prompt, llava.greedy(token_ids, pictures, GREEDY.max_tokens)))
    return found


def answers(llm: pageant.LLM, asked: list[tuple[dict[str, Any], list[int]]]) -> list[pageant.RequestOutput]:
    """Return the outputs of prompts, which are checked against those that are right."""
    outputs = llm.generate([prompt for prompt, _ in asked], GREEDY)
    assert [one.outputs[0].token_ids for one in outputs] == [right for _, right in asked]
    return outputs


def test_images_come_back_from_the_host_and_the_disk(
    llava: Seeing, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    tiers = {"host_memory": "128KiB", "disk_space": "4MiB", "disk_path": str(tmp_path)}
    with pageant.LLM(llava.path, num_blocks=16, max_num_seqs=2, **tiers, **ENGINE) as llm:
        answers(llm, asked)
        again = answers(llm, asked[::-1])  # the latest are in the host's memory, others on the disk
        host, disk = llm.pool_statistics().tiers
    assert host.blocks_restored > 0 and disk.blocks_restored > 0
    assert all(output.num_cached_tokens >= 16 for output in again), "more than the text before the images"


def test_a_store_keeps_texts_and_nothing_of_images(
    llava: Seeing, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of blocks with embeddings are the block manager's own, so that another one would not find them."""
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)
    text = list(range(3, 60))
    with pageant.LLM(llava.path, num_blocks=120, store_memory="4MiB", **ENGINE) as llm:

        def saved() -> int:
            return int(llm._session.ask("store", GetStoreStatistics()).saved)

        answers(llm, asked[:4])
        assert not saved()
        (before,) = llm.generate(text, GREEDY)
        while not saved():
            pass  # a request may end before its blocks are saved
        llm.swap("executor/0")
        answers(llm, asked[:4])
        (after,) = llm.generate(text, GREEDY)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    assert after.num_cached_tokens >= 48 and not before.num_cached_tokens
