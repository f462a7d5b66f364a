"""The tokenizer's shell: what is long is worked on off the loop, and others need not wait for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.tokenizer import SHORT_TOKENS, Tokenizer
from pageant.protocol.arrays import int32
from pageant.protocol.tokenizing import Detokenize, Tokenize, TokenizeChat


class Letters:
    """Tokens are letters."""

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


@pytest.mark.parametrize("request_type", [Tokenize, TokenizeChat, Detokenize])
def test_nobody_waits_for_anothers_text(request_type):
    assert Tokenizer.handlers[request_type].concurrent
