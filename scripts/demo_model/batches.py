"""Training data as rows of token ids: plain documentation, and conversations learnt by their answers."""

from collections.abc import Iterator
from random import Random

import torch
from tokenizers import Tokenizer

from pageant.scripts.demo_model.corpus import sections
from pageant.scripts.demo_model.dialogues import Conversation, conversations
from pageant.scripts.demo_model.docstrings import docstrings
from pageant.scripts.demo_model.tokenizer import END_OF_TEXT_ID

ROW_TOKENS = 256
IGNORED = -100  # the label of tokens that the loss passes over

Row = tuple[list[int], list[int]]  # token ids and labels, ROW_TOKENS of each


def documents() -> list[str]:
    """The plain text: each section of the reference and each docstring once, in a fixed order."""
    texts = [f"{section.title}\n{' '.join(section.prose)}" for section in sections() if section.prose]
    texts += [f"{documented.name}: {documented.text}" for documented in docstrings()]
    return list(dict.fromkeys(texts))


def document_rows(tokenizer: Tokenizer) -> Iterator[Row]:
    """Rows of running text without end; every pass over the documents has an order of its own."""
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(documents())]
    random = Random(0)
    waiting: list[int] = []
    while True:
        random.shuffle(encoded)
        for ids in encoded:
            waiting += [END_OF_TEXT_ID, *ids]
            while len(waiting) >= ROW_TOKENS:
                row, waiting = waiting[:ROW_TOKENS], waiting[ROW_TOKENS:]
                yield row, row


def conversation_rows(tokenizer: Tokenizer) -> Iterator[Row]:
    """Rows of whole conversations without end, epoch after epoch. A row starts where a conversation does."""
    epoch = 0
    while True:
        yield from _packed(tokenizer, conversations(epoch))
        epoch += 1


def rows_per_epoch(tokenizer: Tokenizer) -> int:
    """Return how many rows the conversations of the first epoch fill; the others hardly differ."""
    return sum(1 for _ in _packed(tokenizer, conversations(0)))


def _packed(tokenizer: Tokenizer, epoch: list[Conversation]) -> Iterator[Row]:
    """Fills rows with conversations that end in an end-of-text; one too long for a row loses its end."""
    ids: list[int] = []
    labels: list[int] = []
    for conversation in epoch:
        new_ids, new_labels = _encoded(tokenizer, conversation)
        if ids and len(ids) + len(new_ids) > ROW_TOKENS:
            yield _padded(ids, END_OF_TEXT_ID), _padded(labels, IGNORED)
            ids, labels = [], []
        ids += [*new_ids, END_OF_TEXT_ID]
        labels += [*new_labels, IGNORED]
    yield _padded(ids, END_OF_TEXT_ID), _padded(labels, IGNORED)


def _encoded(tokenizer: Tokenizer, conversation: Conversation) -> Row:
    """A conversation's ids, and the labels that keep only what the model says."""
    ids: list[int] = []
    labels: list[int] = []
    for text, learnt in conversation.segments():
        piece = tokenizer.encode(text).ids
        ids += piece
        labels += piece if learnt else [IGNORED] * len(piece)
    return ids, labels


def _padded(values: list[int], filler: int) -> list[int]:
    return (values + [filler] * ROW_TOKENS)[:ROW_TOKENS]


def stacked(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels of a batch, both int64 [rows, ROW_TOKENS]."""
    return torch.tensor([ids for ids, _ in rows]), torch.tensor([labels for _, labels in rows])
