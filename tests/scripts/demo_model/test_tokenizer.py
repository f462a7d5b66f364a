"""The vocabulary is trained on the spot, and loses nothing."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from pageant.scripts.demo_model.tokenizer import CHAT_TEMPLATE, save_tokenizer, train_tokenizer

TEXTS = ["the with statement wraps a block", "the for statement iterates"] * 3


def test_any_text_comes_back() -> None:
    tokenizer = train_tokenizer(TEXTS)
    for text in ("the with statement", "  tabs\tand\nlines ", "naïve 漢字 🎉"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_come_first_and_are_single() -> None:
    tokenizer = train_tokenizer(TEXTS)
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>").ids == [0, 1, 2]


def test_what_is_saved_can_be_loaded(tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(TEXTS), tmp_path)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("<|im_end|>") == 2
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE
