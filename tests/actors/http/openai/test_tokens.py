"""Bounds of prompts that are tokenized and not answered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.openai.tokens import tokenized
from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import ChatMessage, NotTokenized, Tokenize, TokenizeChat, Tokenized

LIMITS = Limits(vocab_size=9, max_model_len=8, max_logprobs=0, defaults=SamplingParams())
CHAT = TokenizeChat(messages=(ChatMessage(role="user", content="a"),))


class Service:
    """Service whose tokenizer makes one token of each character, and refuses what is too long as the real one does."""

    async def ask(self, served, role, question):
        text = question.text if isinstance(question, Tokenize) else "a" * 40
        if question.tokens_max is None or len(text) > 10 * question.tokens_max:
            return NotTokenized(reason="the prompt is long", parameter="prompt")
        return Tokenized(token_ids=int32([1] * len(text)), text=text)


def ask(question):
    return tokenized(Service(), SimpleNamespace(limits=LIMITS), question)


async def test_a_prompt_that_is_too_long_for_an_answer_is_counted():
    assert len((await ask(Tokenize(text="a" * 32))).token_ids) == 32


@pytest.mark.parametrize(
    ("question", "says", "parameter"),
    [
        (Tokenize(text="a" * 33), "has 33 tokens; at most 32 are told of, 4 times max_model_len", "prompt"),
        (Tokenize(text="a" * 321), "the prompt is long", "prompt"),
        (CHAT, "has 40 tokens; at most 32", "messages"),
    ],
    ids=["tokens", "characters", "conversation"],
)
async def test_one_that_is_longer_by_far_is_refused(question, says, parameter):
    with pytest.raises(BadRequest, match=says) as caught:
        await ask(question)
    assert caught.value.parameter == parameter
