"""The tokenizer's shell: what is long is worked on off the loop, and others need not wait for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.tokenizer import LONG_CHARACTERS, SHORT_TOKENS, Tokenizer
from pageant.protocol.arrays import int32
from pageant.protocol.tokenizing import Detokenize, Tokenize, TokenizeChat


class Letters:
    """Tokens are letters; but longer ones can be, it says."""

    token_length_max = 100

    def encode(self, text, add_special_tokens=True):
        assert len(text) <= LONG_CHARACTERS, "it takes too much"
        return list(map(ord, text))

    def exceeds(self, text, num_tokens):
        return len(text) > num_tokens

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(map(chr, token_ids))


@pytest.fixture
def tokenizer():
    actor = Tokenizer(Tokenizer.Options(model=""))
    actor._tokenization, actor.lent = Letters(), 0

    async def offload(function, *, threads):
        actor.lent += 1
        return function()

    actor._cell = SimpleNamespace(offload=offload)
    return actor


def asked(*texts):
    counts, ids = [len(text) for text in texts], [ord(letter) for text in texts for letter in text]
    return Detokenize(counts=int32(counts), token_ids=int32(ids))


async def test_long_texts_are_made_of_tokens_off_the_loop(tokenizer):
    short, long = ("a", "", "bc"), ("a" * SHORT_TOKENS, "b")
    assert (await tokenizer.detokenize(asked(*short))).texts == short and tokenizer.lent == 0
    assert (await tokenizer.detokenize(asked(*long))).texts == long and tokenizer.lent == 1


@pytest.mark.parametrize(
    ("length", "says"),
    [
        (10_000, None),
        (LONG_CHARACTERS, None),
        (1_000_000, "are not enough for them"),
        (1_000_001, "have at most 1000000"),
    ],
)
async def test_what_has_too_many_tokens_is_not_tokenized_to_learn_that(tokenizer, length, says):
    answer = await tokenizer.tokenize(Tokenize(text="a" * length, tokens_max=10_000))
    if says is None:  # whoever asked counts the tokens too
        assert len(answer.token_ids) == length
    else:
        assert answer.reason.startswith(f"the prompt has {length} characters; 10000 tokens, ")
        assert says in answer.reason and answer.parameter == "prompt"


@pytest.mark.parametrize("request_type", [Tokenize, TokenizeChat, Detokenize])
def test_nobody_waits_for_anothers_text(request_type):
    assert Tokenizer.handlers[request_type].concurrent
