"""A smaller model that goes ahead of the target (Leviathan et al., 2023), with blocks of the same numbers.

It computes a sequence's tokens when drafts are wanted, and prompts along with the target, so that what the prefix
cache holds is there for both. A sequence whose drafts are not wanted costs nothing; when they are again, what it
missed is made up for in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import UNKNOWN, Packed, pack
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.passes import Passes
from pageant.actors.executor.runners.proposers.base import BatchSizes, Verified, chains, sampled
from pageant.kernels.base import KVCache
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError
from pageant.models.loading import load_decoder
from pageant.protocol.verification import Drafts

__all__ = ["DraftModel"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class DraftModel:
    """A `Proposer`; see `base`.

    Raises:
        CheckpointError: it has another vocabulary than the target.

    Args:
        path: the smaller model's checkpoint.
        target: the model that it drafts for, or this executor's share of it.
        vocab_size: the target's.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, path: Path, target: Decoder, vocab_size: int, dtype: str, max_model_len: int) -> None:
        checkpoint = Checkpoint(path)
        spec = checkpoint.spec()
        if spec.vocab_size != vocab_size:
            raise CheckpointError(
                path,
                f"a vocabulary of {spec.vocab_size} tokens",
                f"the {vocab_size} of the model that it drafts for",
                "Name a draft model of the same family in speculation.model.",
            )
        self._positions_max = min(max_model_len, spec.max_model_len)
        self._decoder = load_decoder(
            checkpoint, dtype, target.device, kernels=target.kernels, max_model_len=self._positions_max
        )
        if target.kv_dtype != target.dtype:
            self._decoder.kv_dtype = target.kv_dtype
        self.windows = self._decoder.windows

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Proposer`."""
        return self._decoder.kv_bytes_per_block(block_size)

    def allocate(self, sizes: BatchSizes) -> Sequence[KVCache]:
        """See `Proposer`."""
        caches = self._decoder.allocate_kv_caches(sizes.num_blocks, sizes.block_size)
        self._last_drawn = torch.zeros(sizes.max_num_seqs, dtype=torch.int64, device=self._decoder.device)
        self._passes = Passes(
            self._decoder,
            caches,
            self._last_drawn,
            max_num_seqs=sizes.max_num_seqs,
            max_model_len=sizes.max_model_len,
            block_size=sizes.block_size,
        )
        self._block_size = sizes.block_size
        # By row: tokens whose keys and values are right here.
        self._known = np.zeros(sizes.max_num_seqs, np.int32)
        return caches

    def propose(self, step: Verified) -> Drafts:
        """See `Proposer`."""
        wanted = step.wanted_within(self._block_size, self._positions_max)
        packed, asking = self._catch_up(step, wanted)
        rounds: list[tuple[Int64, Tensor]] = []
        if packed is not None:
            hidden = self._passes.run(packed)
            for ahead in range(int(wanted.max(initial=0))):
                which = np.flatnonzero(wanted > ahead)
                if ahead:
                    hidden = self._next(step, which, ahead)
                    ends = np.arange(len(which))
                else:
                    ends = packed.query_starts[1:].astype(np.int64)[asking] - 1
                logits = self._decoder.logits(hidden[to_device(ends, hidden.device)])
                drawn = sampled(self._decoder.kernels, logits, step, which, ahead + 1)
                self._last_drawn[to_device(step.rows[which].astype(np.int64), drawn.device)] = drawn
                rounds.append((which, drawn))
        some = wanted > 0
        self._known[step.rows[some]] = step.next_positions[some] + wanted[some]
        return chains(wanted.astype(np.int32), rounds)

    def _catch_up(self, step: Verified, wanted: Int32) -> tuple[Packed | None, Int64]:
        """Return what is computed first: of rows that drafts are wanted for, all tokens up to the last drawn one; of
        prompts, those that the target has just computed. And which of these rows are the former."""
        proposing = step.proposing
        rows, starts, draws = proposing.rows, proposing.starts, proposing.draws
        lengths = np.diff(step.inputs.query_starts)
        is_new = np.isin(rows, [sequence.row for sequence in proposing.new])
        self._known[rows[is_new]] = starts[is_new]
        self._known[step.rows] = np.minimum(self._known[step.rows], step.next_positions)
        ends = starts + lengths
        asked = np.zeros(len(rows), np.int32)
        asked[draws] = wanted
        ends[draws] = step.next_positions
        own = lengths.copy()
        if step.inputs.verifying is not None:
            own[draws] -= step.inputs.verifying.drafts.counts
        in_prompt = (self._known[rows] == starts) & (~draws | (own > 1))
        computed = ((asked > 0) | in_prompt) & (ends <= self._positions_max)
        if not computed.any():
            return None, np.empty(0, np.int64)
        ends = ends + (asked > 0)
        rows, begins, ends, asked = (
            rows[computed],
            self._known[rows[computed]],
            ends[computed],
            asked[computed],
        )
        packed = pack(
            rows, begins, ends - begins, step.history.token_ids, proposing.block_tables, self._block_size
        )
        self._known[rows] = ends
        return packed, np.flatnonzero(asked)

    def _next(self, step: Verified, which: Int64, ahead: int) -> Tensor:
        """Hidden states [R, hidden_size] after the drafts of the round before."""
        rows = step.rows[which].astype(np.int64)
        packed = replace(
            step.one_of_each(which, ahead, self._block_size),
            token_ids=np.full(len(rows), UNKNOWN, np.int64),
            unknown=np.arange(len(rows)),
            unknown_rows=rows,
        )
        return self._passes.run(packed)
