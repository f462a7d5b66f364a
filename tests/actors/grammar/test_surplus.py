"""Tokenizers with more tokens than their model has rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import pageant
from pageant.actors.grammar.compiling import Compiler
from pageant.actors.grammar.surplus import within
from pageant.models.tokenization import Tokenization
from pageant.protocol.structured_outputs import StructuredOutputsParams

DEMO = Path(pageant.__file__).parent / "models" / "demo" / "tokenizer.json"


@pytest.mark.parametrize("vocab_size", [4000, 4095, 4096, 4128])
def test_a_grammar_is_followed_though_tokenizer_and_model_disagree(vocab_size):
    backend = Tokenizer.from_file(str(DEMO))
    backend.add_special_tokens(["<|added|>", "<|more|>"])
    compiler = Compiler(Tokenization(backend), vocab_size, [0])
    matcher = compiler.compile(StructuredOutputsParams(regex="[a-z]+|<.added.>"))
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    allowed = np.flatnonzero(bits)
    assert len(allowed) > 26 and allowed.max() < vocab_size
    assert all(backend.id_to_token(int(token)).isascii() for token in allowed)


def test_what_fits_is_left_as_it_is():
    text = DEMO.read_text()
    assert within(text, 4096) is text


def test_tokens_beyond_a_model_go_with_their_merges():
    text = DEMO.read_text()
    cut = json.loads(within(text, 4000))
    kept = cut["model"]["vocab"]
    assert max(kept.values()) < 4000
    assert 0 < len(cut["model"]["merges"]) < len(json.loads(text)["model"]["merges"])
    Tokenizer.from_str(json.dumps(cut))  # it is whole


def test_a_unigram_model_is_cut_by_place():
    pieces = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["c", -3.0]]
    cut = json.loads(within(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}), 2))
    assert cut["model"]["vocab"] == pieces[:2] and cut["added_tokens"] == []
