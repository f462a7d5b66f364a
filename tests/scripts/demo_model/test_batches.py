"""Rows hold whole conversations, and learn the answers only."""

from itertools import islice

import pytest
from tokenizers import Tokenizer

from pageant.scripts.demo_model.batches import IGNORED, ROW_TOKENS, conversation_rows, document_rows, stacked
from pageant.scripts.engine_options import DEMO_MODEL


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def test_a_row_of_conversations_starts_with_a_turn(tokenizer: Tokenizer) -> None:
    for ids, labels in islice(conversation_rows(tokenizer), 20):
        assert tokenizer.id_to_token(ids[0]) == "<|im_start|>"
        assert len(ids) == len(labels) == ROW_TOKENS


def test_labels_are_the_answers_with_their_end(tokenizer: Tokenizer) -> None:
    ids, labels = next(conversation_rows(tokenizer))
    learnt = [label for label in labels if label != IGNORED]
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    assert tokenizer.id_to_token(learnt[-1]) == "<|im_end|>"
    assert "<|im_start|>" not in tokenizer.decode(learnt, skip_special_tokens=False)


def test_documents_are_learnt_whole(tokenizer: Tokenizer) -> None:
    rows = list(islice(document_rows(tokenizer), 3))
    ids, labels = stacked(rows)
    assert ids.shape == labels.shape == (3, ROW_TOKENS)
    assert (ids == labels).all()
