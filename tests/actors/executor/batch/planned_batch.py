"""A batch that is driven by plans in a few words."""

from __future__ import annotations

import numpy as np

from pageant.actors.executor.batch.batch import Batch
from pageant.protocol.arrays import bools, int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan

END = 2


class Executor:
    """A batch of four rows and sixteen positions, with the plans of one scheduler."""

    def __init__(self, adapters=()):
        self.batch = Batch(
            max_num_seqs=4, max_model_len=16, block_size=4, end_tokens=(END,), adapters=adapters
        )
        self.number = 0
        self.adapters = {}  # of new sequences, by row

    def step(self, compute, *, new=(), grown=(), freed=(), number=None):
        """Apply the next plan; return its inputs.

        compute: (row, start, count, draws) of each row. new: (row, tokens, blocks[, params, prompt length]).
        """
        self.number = self.number + 1 if number is None else number
        self.plan = StepPlan(
            number=self.number,
            epoch=1,
            freed_rows=int32(freed),
            new=tuple(
                NewSequence(
                    row=row,
                    token_ids=int32(tokens),
                    blocks=int32(blocks),
                    params=more[0] if more else SamplingParams(temperature=0.0),
                    num_prompt_tokens=more[1] if len(more) > 1 else len(tokens),
                    adapter=self.adapters.get(row),
                )
                for row, tokens, blocks, *more in new
            ),
            grown_rows=int32([row for row, _ in grown]),
            grown_counts=int32([len(blocks) for _, blocks in grown]),
            grown_blocks=int32([block for _, blocks in grown for block in blocks]),
            rows=int32([row for row, _, _, _ in compute]),
            starts=int32([start for _, start, _, _ in compute]),
            num_tokens=int32([count for _, _, count, _ in compute]),
            draws=bools([draws for _, _, _, draws in compute]),
        )
        return self.batch.apply(self.plan)

    def draw(self, inputs, tokens):
        """Take the tokens that a step drew."""
        self.batch.take_tokens(inputs, np.array(tokens, np.int64))
