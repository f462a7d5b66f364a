"""Tokenizers made from metadata cut texts as the tokenizers do that the metadata was taken from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from pageant.models import Checkpoint, CheckpointError
from pageant.models.gguf.folder import as_folder, refuse_without_tokenizer
from pageant.models.gguf.pre_tokenizers import RULES
from pageant.models.gguf.vocabulary import TokenKind
from pageant.models.tokenization import Tokenization
from tests.gguf_files import byte_level_metadata

TEXTS = (
    *(
        "Hello, world!",
        "  two spaces, and\ttabs\n\n\nlines",
        "It's 2024, isn't IT? 1234567 x 89",
        "ÀÉî über straße",
    ),
    *(
        "日本語のテキスト、한국어",
        "emoji 🎉👩‍🔬 end",
        "a.b/c-d_e(f){g}[h]",
        "",
        " ",
        "<|im_end|>inside<|im_start|>",
    ),
    *("THEY'LL don't WE'VE", "price: $3.50 + 20%", "def f(x):\n    return x ** 2\n", "\r\n\r\n  x  \r\n"),
)
CORPUS = [
    *TEXTS,
    *(f"{word} {word}s the and of {word}ing" for word in ("walk", "talk", "count", "paint", "token")),
] * 3
SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def trained(pre: str) -> Tokenizer:
    """Return a byte-level tokenizer as checkpoints of the models have it that a rule is for."""
    from tokenizers import Regex

    tokenizer = Tokenizer(BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
    if pre in SPLITS:
        first = pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    elif pre in ("smollm", "starcoder"):
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_end|>", "<|im_start|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str) -> Callable[[Any], None]:
    """Return what writes a tokenizer into a file's metadata."""
    return byte_level_metadata(json.loads(tokenizer.to_str()), pre)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "starcoder", *SPLITS])
def test_byte_level_tokens_are_the_tokenizers_own(written: Callable[..., Any], pre: str) -> None:
    original = trained(pre)
    folder = as_folder(written("qwen2", "F16", metadata_of(original, pre)).path)
    ours = Tokenization.from_checkpoint(folder)
    begin = [2] if pre == "llama-bpe" else []
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == begin + original.encode(text).ids, text
        assert ours.decode(ids) == original.decode(ids)
    assert ours.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
    }
    assert len(original.encode(CORPUS[-1]).ids) < len(CORPUS[-1]) / 2, "merges are meant to matter"


@pytest.mark.parametrize("pre", RULES)
def test_every_rule_loses_nothing(written: Callable[..., Any], pre: str) -> None:
    """A rule that is no regular expression, or that drops what it does not match, would show."""
    folder = as_folder(written("qwen2", "F16", metadata_of(trained("gpt-2"), pre)).path)
    ours = Tokenization.from_checkpoint(folder)
    for text in TEXTS:
        assert ours.decode(ours.encode(text), skip_special_tokens=False).removeprefix("<|im_start|>") in (
            text,
            text.removeprefix("<|im_start|>"),
        )


def sentencepiece_model(tmp_path: Path) -> Any:
    """Return a SentencePiece BPE model with fallback to bytes, such as Llama 2 has."""
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(line for text in CORPUS for line in text.split("\n") if line.strip()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))


def sentencepiece_metadata(model: Any, *, space: bool = True) -> Callable[[Any], None]:
    def kind(number: int) -> int:
        if model.is_unknown(number):
            return TokenKind.UNKNOWN
        if model.is_control(number):
            return TokenKind.CONTROL
        return TokenKind.BYTE if model.is_byte(number) else TokenKind.NORMAL

    def edit(writer: Any) -> None:
        for key in ("model", "tokens", "token_type", "merges", "pre", "padding_token_id"):
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}", None)
        numbers = range(model.vocab_size())
        writer.add_tokenizer_model("llama")
        writer.add_token_list([model.id_to_piece(number) for number in numbers])
        writer.add_token_scores([model.get_score(number) for number in numbers])
        writer.add_token_types([int(kind(number)) for number in numbers])
        writer.kv_data[0].pop("tokenizer.ggml.bos_token_id")
        writer.kv_data[0].pop("tokenizer.ggml.eos_token_id")
        writer.add_bos_token_id(model.bos_id())
        writer.add_eos_token_id(model.eos_id())
        writer.add_unk_token_id(model.unk_id())
        writer.add_add_space_prefix(space)

    return edit


def test_pieces_are_those_of_sentencepiece(written: Callable[..., Any], tmp_path: Path) -> None:
    model = sentencepiece_model(tmp_path)
    ours = Tokenization.from_checkpoint(
        as_folder(written("llama", "F16", sentencepiece_metadata(model)).path)
    )
    for text in TEXTS:
        if not text:
            continue
        ids = ours.encode(text)
        assert ids[0] == model.bos_id()
        assert ids[1:] == model.encode(text), text
        assert ours.decode(ids) == text
    assert len(model.encode(CORPUS[-1])) < len(CORPUS[-1]) * 0.6, "merges are meant to matter"


def test_no_space_is_put_before_a_text_where_the_file_says_so(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    model = sentencepiece_model(tmp_path)
    edit = sentencepiece_metadata(model, space=False)
    ours = Tokenization.from_checkpoint(as_folder(written("llama", "F16", edit).path))
    assert ours.decode(ours.encode("walk")) == "walk"
    assert ours.id_to_token(ours.encode("walk", add_special_tokens=False)[0])[0] != "▁"


def test_templates_ends_and_sampling_come_from_the_file(written: Callable[..., Any]) -> None:
    def edit(writer: Any) -> None:
        writer.add_chat_template(
            [
                {
                    "name": "default",
                    "template": "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ bos_token }}",
                },
                {"name": "tool_use", "template": "tools"},
            ]
        )
        writer.add_eot_token_id(2)
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_uint32("general.sampling.top_k", 20)

    checkpoint = Checkpoint(as_folder(written("qwen2", "F16", edit).path))
    tokens = Tokenization.from_checkpoint(checkpoint.path)
    assert tokens.render_chat([{"role": "user", "content": "hi"}]) == "[hi]<|begin|>"
    assert set(checkpoint.eos_token_ids) == {1, 2}
    assert checkpoint.generation_config == {"eos_token_id": [1, 2], "temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tokenizer.ggml.tokens", None, "no tokenizer.ggml.tokens; expected a tokenizer in the file"),
        ("tokenizer.ggml.pre", "martian", "tokenizer.ggml.pre is 'martian'; expected one of gpt-2"),
        ("tokenizer.ggml.model", "bert", "tokenizer.ggml.model is 'bert'; expected gpt2 or llama"),
        ("tokenizer.ggml.merges", None, "no tokenizer.ggml.merges; expected the merges of the tokenizer"),
        ("tokenizer.ggml.merges", ["x"], "tokenizer.ggml.merges[0] is 'x'; expected two tokens"),
        ("tokenizer.ggml.merges", ["t zz"], "tokenizer.ggml.merges[0] is 't zz'; expected two tokens"),
    ],
)
def test_a_file_without_a_tokenizer_serves_ids_alone(
    written: Callable[..., Any], key: str, value: Any, said: str
) -> None:
    def edit(writer: Any) -> None:
        held = writer.kv_data[0]
        if value is None:
            held.pop(key)
            return
        held[key].value = value

    checkpoint = Checkpoint(as_folder(written("qwen2", "F16", edit).path))
    checkpoint.check()
    with pytest.raises(CheckpointError) as error:
        refuse_without_tokenizer(checkpoint.path)
    assert said in str(error.value) and "skip_tokenizer_init" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "tokenizer.ggml.token_type",
            np.array([1, 1]),
            "tokenizer.ggml.token_type is an array of 2; expected one",
        ),
        (
            "tokenizer.ggml.eos_token_id",
            999,
            "tokenizer.ggml.eos_token_id is 999; expected a token below 288",
        ),
        ("tokenizer.ggml.tokens", 7, "tokenizer.ggml.tokens is 7; expected an array"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    written: Callable[..., Any], key: str, value: Any, said: str
) -> None:
    import gguf

    def edit(writer: Any) -> None:
        held = writer.kv_data[0]
        if isinstance(value, int) and key.endswith("tokens"):
            held[key] = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.UINT32)
        else:
            held[key].value = value.tolist() if isinstance(value, np.ndarray) else value

    with pytest.raises(CheckpointError) as error:
        as_folder(written("qwen2", "F16", edit).path)
    assert said in str(error.value)
