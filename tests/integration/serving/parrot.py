"""A model that says what it is told to, so that what is made of its words can be known."""

from __future__ import annotations

from pathlib import Path

import pageant
from pageant.models.tokenization import Tokenization

DEMO = Path(pageant.__file__).parent / "models" / "demo"
END = 2  # <|im_end|>


class Parrot:
    """Repeats what stands between SAY( and )SAY in the last such place of its prompt."""

    def __init__(self):
        self._tokenization = Tokenization.from_checkpoint(DEMO)

    def wants(self, params):
        """See `LogitsProcessor`."""
        return True

    def apply(self, logits, rows):
        """See `LogitsProcessor`."""
        for logit, row in zip(logits, rows, strict=True):
            prompt = self._tokenization.decode(row.prompt_token_ids.tolist(), skip_special_tokens=False)
            told = prompt.rpartition("SAY(")[2].partition(")SAY")[0]
            said = [*self._tokenization.encode(told, add_special_tokens=False), END]
            logit[:] = float("-inf")
            logit[said[min(len(row.output_token_ids), len(said) - 1)]] = 0.0
        return logits
