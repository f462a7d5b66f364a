"""A vocabulary of the 256 bytes, two end tokens and some marks, and grammars over it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pageant.actors.grammar.compiling import Compiler
from pageant.models.tokenization import Tokenization

ENDS = (0, 1)
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")


@pytest.fixture(scope="session")
def tokenization() -> Tokenization:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<end>", "<stop>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab, [], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "<stop>", "[TOOL_CALLS]", "<|python_tag|>", *HARMONY])
    backend.add_tokens(["<tool_call>", "</tool_call>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "[ARGS]"])
    return Tokenization(backend)


@pytest.fixture(scope="session")
def vocab_size(tokenization: Tokenization) -> int:
    return tokenization.vocab_size + 30  # padded, as a model's often is


@pytest.fixture(scope="session")
def compiler(tokenization: Tokenization, vocab_size: int) -> Compiler:
    return Compiler(tokenization, vocab_size, ENDS)


@pytest.fixture(scope="session")
def spell(tokenization):
    return lambda text: tokenization.encode(text, add_special_tokens=False)
