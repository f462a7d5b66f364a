"""Images and videos on a model with recurrent layers, Qwen3.5: transformers is the oracle, however steps are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pageant
from tests.integration.test_videos import ENGINE, FILM, Chatting
from tests.video_models import pictures

COUNT = 32
PARAMS = pageant.SamplingParams(
    temperature=0, max_tokens=COUNT, ignore_eos=True, detokenize=False, logprobs=0
)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return Chatting("qwen3_5", Path(tmp_path_factory.mktemp("recurrent")))


@pytest.fixture(scope="module")
def requests(qwen):
    return requests_of(qwen)


def requests_of(qwen):
    """Prompts with the tokens that follow them, and with the logarithms of their probabilities."""
    found = []
    for tokens, shown, videos in (
        ([5, 9, 7, 11, 30], [], []),
        ([5, "image", 7], pictures()[:1], []),
        (["image", 4, "video", 9, "image", 9], pictures(), [FILM]),
    ):
        asked = qwen.watched(tokens), shown, videos
        expected = qwen.follows(*asked, COUNT)
        given = qwen.given_for(*asked)
        length = given["input_ids"].shape[1]
        following = given["position_ids"].amax(dim=2, keepdim=True) + 1
        following[1:] = following[1:].max()
        later = following + torch.arange(COUNT)
        given["input_ids"] = torch.cat([given["input_ids"], torch.tensor([expected])], dim=1)
        given["position_ids"] = torch.cat([given["position_ids"], later], dim=2)
        logprobs = qwen.logits_of(given).log_softmax(-1)[length - 1 : -1]
        media = {name: value for name, value in (("image", shown), ("video", videos)) if value}
        prompt = {"prompt_token_ids": asked[0], "multi_modal_data": media} if media else asked[0]
        found.append((prompt, expected, logprobs[range(COUNT), expected].tolist(), length))
    return found


@pytest.mark.parametrize("most", [4, 7, 64, 512])
def test_answers_are_transformers_at_every_size_of_steps(qwen, requests, most):
    check_answers(qwen, requests, most)


def test_answers_of_a_model_with_experts_are_transformers(tmp_path):
    qwen = Chatting("qwen3_5_moe", tmp_path)
    check_answers(qwen, requests_of(qwen), 64)


def check_answers(qwen, requests, most):
    settings = {"num_blocks": 200, "max_num_batched_tokens": most, "max_num_seqs": 4, "max_model_len": 400}
    with pageant.LLM(qwen.path, **settings, **ENGINE) as llm:
        for _ in range(2):  # the second time, prefixes and their states are cached
            outputs = llm.generate([prompt for prompt, *_ in requests], PARAMS)
            for output, (_, tokens, logprobs, length) in zip(outputs, requests, strict=True):
                (said,) = output.outputs
                assert len(output.prompt_token_ids) == length and said.token_ids == tokens
                found = [one[token].logprob for one, token in zip(said.logprobs, tokens, strict=True)]
                apart = max(abs(one - right) for one, right in zip(found, logprobs, strict=True))
                assert apart < 1e-4
        assert all(output.num_cached_tokens for output in outputs[1:]), "states are found again"
