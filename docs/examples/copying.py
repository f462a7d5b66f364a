"""An executor that computes without a model: after each token it says what followed that token the last time.

cd docs/examples
pageant run --topology copying.yaml --raw "one two three one two"
pageant conformance executor copying:CopyingExecutor
"""

from __future__ import annotations

import numpy as np

from pageant.actors.executor.plain import KnownTokens, PlainExecutor, PlainRunner, StepInputs


class CopyingRunner(PlainRunner):
    """Keeps one token id in each slot of its KV memory, and reads a sequence's slots back to draw."""

    def __init__(self, options: PlainExecutor.Options) -> None:
        super().__init__(options.num_blocks or 1024, options.max_model_len)
        self.kv = np.zeros((self.num_blocks, options.block_size), np.int64)
        self.last_drawn = np.zeros(options.max_num_seqs, np.int64)  # by row of the batch
        self.end_token = options.eos_token_ids[0]

    def launch(self, inputs: StepInputs) -> KnownTokens:
        self.kv[inputs.copy_destinations] = self.kv[inputs.copy_sources]
        token_ids = inputs.token_ids.copy()
        token_ids[inputs.unknown] = self.last_drawn[inputs.unknown_rows]
        self.kv.reshape(-1)[inputs.slots[0]] = token_ids
        sequences = np.searchsorted(inputs.query_starts, inputs.last_tokens, side="right") - 1
        drawn = np.zeros(len(inputs.rows), np.int64)
        for place, (sequence, token) in enumerate(zip(sequences, inputs.last_tokens, strict=True)):
            text = self.kv[inputs.block_tables[0, sequence]].reshape(-1)[: inputs.positions[token] + 1]
            before = np.flatnonzero(text[:-1] == text[-1])
            drawn[place] = text[before[-1] + 1] if len(before) else self.end_token
        self.last_drawn[inputs.rows] = drawn
        return KnownTokens(drawn)


class CopyingExecutor(PlainExecutor):
    """The executor over a `CopyingRunner`. It declares no feature: requests that need one are refused by name."""

    def open_runner(self) -> CopyingRunner:
        return CopyingRunner(self.options)
