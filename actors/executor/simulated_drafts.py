"""Drafts of a stand-in for a model on the device: mostly what it would say, and sometimes not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.simulated_model import mix, noise_of, scores_of, written
from pageant.protocol.arrays import int32
from pageant.protocol.drafting import Speculation
from pageant.protocol.verification import MISSING, Drafts

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

WRONG = 4  # one in so many


class SimulatedProposer:
    """Proposes drafts one after another, or with `medusa` a tree: two at each depth, of which one is followed by more.

    Args:
        alphabet: uint64, the tokens that the model draws from.
    """

    def __init__(
        self, speculation: Speculation, alphabet: UInt64, block_size: int, max_model_len: int
    ) -> None:
        self._is_tree = speculation.method == "medusa"
        self._alphabet, self._block_size, self._max_model_len = alphabet, block_size, max_model_len

    def propose(self, inputs: StepInputs, last: Int64, token_ids: Int64, seen: UInt64) -> Drafts:
        """Return what may follow the last drawn tokens [N], at the places `last`, which were drawn after `seen`."""
        proposing = inputs.proposing
        assert proposing is not None, "a step without a proposer"
        positions = inputs.sampling.position[last]
        slots = np.minimum(
            proposing.num_block_groups[inputs.rows[last]] * self._block_size, self._max_model_len
        )
        wanted = np.where(token_ids == MISSING, 0, proposing.wanted)
        counts = np.clip(slots - positions, 0, wanted).astype(np.int32)
        width = 2 if self._is_tree else 1
        rounds: list[tuple[list[int], list[int]]] = []  # what goes on, and what stands beside it, by row
        for ahead in range(1, 1 + -(-int(counts.max(initial=0)) // width)):
            with np.errstate(over="ignore"):
                seen = seen + written(token_ids, positions + ahead - 1)
            noise = noise_of(seen, inputs.sampling, last, ahead)
            likeliest = scores_of(noise, self._alphabet).argmax(axis=1)
            others = (likeliest + 1) % len(self._alphabet)
            right = mix(noise, np.full(1, ahead)) % np.uint64(WRONG) > 0
            token_ids = self._alphabet[np.where(right, likeliest, others)].astype(np.int64)
            beside = self._alphabet[np.where(right, others, likeliest)]
            rounds.append((token_ids.tolist(), beside.tolist()))
        guesses: list[int] = []
        parents: list[int] = []
        for row, count in enumerate(counts.tolist()):
            guesses += [tokens[row] for pair in rounds for tokens in pair[:width]][:count]
            parents += [2 * (index // 2) - 2 if index > 1 else -1 for index in range(count)]
        return Drafts(counts, int32(guesses), int32(parents if self._is_tree else ()))
