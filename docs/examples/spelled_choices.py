"""A grammar backend that knows choices alone, and lets each be spelled in one way: as the tokenizer spells it.

cd docs/examples
pageant serve ../../models/demo --topology spelled_choices.yaml
pageant conformance grammar spelled_choices:SpelledChoices
"""

from __future__ import annotations

from pathlib import Path

from pageant.actors.grammar.plain import GrammarError, PlainGrammar, PlainMatcher
from pageant.models.tokenization import Tokenization
from pageant.protocol.structured_outputs import StructuredOutputsParams


class Choice(PlainMatcher):
    """Goes along the token ids of all choices that begin like the output."""

    def __init__(self, left: list[list[int]], said: int = 0) -> None:
        self.left, self.said = left, said

    def copy(self) -> Choice:
        return Choice(self.left, self.said)

    def take(self, token_id: int) -> bool:
        self.left = [ids for ids in self.left if ids[self.said : self.said + 1] == [token_id]]
        self.said += 1
        return bool(self.left)

    def allowed(self) -> set[int]:
        return {ids[self.said] for ids in self.left if len(ids) > self.said}


class Backend:
    """Compiles choices for one tokenizer."""

    def __init__(self, tokenization: Tokenization, end_tokens: tuple[int, ...]) -> None:
        self.tokenization, self.end_tokens = tokenization, end_tokens

    def compile(self, asked: StructuredOutputsParams) -> Choice:
        if asked.choice is None:
            raise GrammarError(f"found {asked.kind}; expected choice, the only kind that is followed here")
        spelled = [self.tokenization.encode(text, add_special_tokens=False) for text in asked.choice]
        return Choice([[*ids, end] for ids in spelled for end in self.end_tokens])


class SpelledChoices(PlainGrammar):
    """Follows choices, spelled as the tokenizer spells them."""

    def open_backend(self) -> Backend:
        return Backend(Tokenization.from_checkpoint(Path(self.options.model)), self.options.eos_token_ids)
