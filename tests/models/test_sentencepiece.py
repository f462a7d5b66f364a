"""Checkpoints whose tokenizer is a sentencepiece model alone."""

import json

import pytest
import sentencepiece

from pageant.models.tokenization import Tokenization


@pytest.mark.parametrize(("kind", "tokenizer_class"), [("bpe", "LlamaTokenizer"), ("unigram", "T5Tokenizer")])
def test_a_sentencepiece_model_works_after_the_standard_installation(tmp_path, kind, tokenizer_class):
    (tmp_path / "text").write_text("\n".join(f"the quick brown fox jumps over {n} dogs" for n in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=300 if kind == "bpe" else 40,
        model_type=kind,
        byte_fallback=kind == "bpe",
        minloglevel=2,
    )
    config = {"tokenizer_class": tokenizer_class, "legacy": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    tokenization = Tokenization.from_checkpoint(tmp_path)
    text = "the brown dogs jump over the fox"
    assert tokenization.encode(text, add_special_tokens=False) == oracle.encode(text)
    assert tokenization.decode(oracle.encode(text)) == text
