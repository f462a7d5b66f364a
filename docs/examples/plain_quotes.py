"""A tokenizer that gives the model straight quotation marks, which it has seen more often.

cd docs/examples
pageant run --topology plain_quotes.yaml "What is “a list”?"
pageant conformance tokenizer plain_quotes:PlainQuotes
"""

from __future__ import annotations

from pageant.actors.tokenizer import Tokenizer

STRAIGHT = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})


class PlainQuotes(Tokenizer):
    """Replaces typographic quotation marks before a prompt is tokenized."""

    def prepare(self, text: str) -> str:
        return text.translate(STRAIGHT)
