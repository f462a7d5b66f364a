"""Rules of texts that are heard, as Whisper writes them (Radford et al., 2022), in the order of transformers:

1. Some tokens are not drawn first, and some never.
2. Timestamps, where they are asked for, come in pairs, but for one before the end: behind a piece of text one of its
   end, then one of the next piece's begin. They do not go back, and a piece takes some time.
3. The text begins with a timestamp, which may be bounded.
4. A timestamp is drawn where all timestamps together are likelier than any one other token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pageant.actors.executor.batch.processors import ProcessedRow
from pageant.protocol.hearing import SpeechRules
from pageant.protocol.sampling import SamplingParams

__all__ = ["SpeechProcessor"]

_NEVER = float("-inf")


class SpeechProcessor:
    """The rules as a logits processor: all that it goes by is the row's tokens, so it keeps nothing."""

    def wants(self, params: SamplingParams) -> bool:
        """Return False: who wants it is known by other things than parameters."""
        return False

    def apply(self, logits: Tensor, rows: Sequence[ProcessedRow]) -> Tensor:
        """Return the logits [R, V], float32, of rows that have rules. Mutates them."""
        for place, row in enumerate(rows):
            assert row.speech is not None, "others do not come here"
            _apply(logits[place], row.output_token_ids.tolist(), row.speech)
        return logits


def _apply(logits: Tensor, output: list[int], rules: SpeechRules) -> None:
    """Forbid tokens of one row, logits [V], after its output. Mutates the logits."""
    if not output:
        _forbid(logits, rules.first_suppressed)
    _forbid(logits, rules.suppressed)
    if (first := rules.first_timestamp) is None:
        return
    logits[first - 1] = _NEVER  # which says that times are not written
    if not output:
        logits[:first] = _NEVER
        if rules.initial_timestamp_most is not None:
            logits[first + rules.initial_timestamp_most + 1 :] = _NEVER
    else:
        _forbid_by_last(logits, output, first, rules.end)
    logprobs = torch.log_softmax(logits, dim=-1)
    if logprobs[first:].logsumexp(dim=-1) > logprobs[:first].max():
        logits[:first] = _NEVER


def _forbid_by_last(logits: Tensor, output: list[int], first: int, end: int) -> None:
    """Forbid what would break up pairs of timestamps, and times that have passed. Mutates the logits, [V]."""
    after_one = output[-1] >= first
    after_pair = after_one and (len(output) < 2 or output[-2] >= first)
    if after_pair:
        logits[first:] = _NEVER
    elif after_one:
        logits[:end] = _NEVER
    last = next((token for token in reversed(output) if token >= first), None)
    if last is not None:
        passed = last if after_one and not after_pair else last + 1
        logits[first:passed] = _NEVER


def _forbid(logits: Tensor, tokens: Sequence[int]) -> None:
    if tokens:
        logits[torch.tensor(tokens, device=logits.device)] = _NEVER
