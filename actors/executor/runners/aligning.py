"""Times of a text's tokens within a sound, on the device: from weights of attention to the rows of encoders."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.actors.executor.batch.pooled import PooledPart, PooledStep
from pageant.actors.executor.runners.pooling import PooledTensors
from pageant.models.audio.alignment import token_rows
from pageant.models.encoder_attention import Watched
from pageant.models.hearing_decoder import HearingDecoder
from pageant.protocol.hearing import Alignment

__all__ = ["Aligning"]


class Aligning:
    """Finds tokens in sounds, and keeps the weights of sequences that are computed in chunks.

    It has the methods of `Pooling`: such a sequence draws nothing, and its result takes the place of pooled states.
    Belongs to the computing thread.
    """

    def __init__(self, decoder: HearingDecoder) -> None:
        self._decoder = decoder
        self._partly: dict[int, list[Watched]] = {}

    def begin(self, step: PooledStep) -> None:
        """Watch a step's tokens. Forgets what an aborted sequence has left in a row that another one begins in."""
        watched = []
        for part in step.parts:
            one = Watched(part.tokens, part.row, _asked(part).heads)
            if part.begins:
                self._partly[part.row] = []
            self._partly[part.row].append(one)
            watched.append(one)
        self._decoder.watched = watched

    def reads_last(self, step: PooledStep) -> bool:
        """Return True: only weights are read, and hidden states after which others draw."""
        return True

    def reads_first(self, step: PooledStep) -> bool:
        """Return False: see `reads_last`."""
        return False

    def take(self, step: PooledStep, hidden: Tensor) -> PooledTensors:
        """Take in a step that is computed. Returns the results of sequences that end with it."""
        self._decoder.watched = ()
        results = PooledTensors()
        for part in step.parts:
            if part.place is not None:
                rows = _rows(self._partly.pop(part.row), _asked(part))
                results.add([part.place], rows[None, None])
        return results

    def take_read(self, step: PooledStep, hidden: Tensor) -> PooledTensors:
        """See `take`."""
        return self.take(step, hidden)


def _asked(part: PooledPart) -> Alignment:
    assert part.params.alignment is not None, "a model that hears does not pool otherwise"
    return part.params.alignment


def _rows(chunks: list[Watched], asked: Alignment) -> Tensor:
    """Return float32 [tokens]: the encoder's row at which each token that is asked about is said."""
    weights = [
        torch.cat([chunk.weights[one] for chunk in chunks])[asked.first :, : asked.num_rows]
        for one in asked.heads
    ]
    return torch.from_numpy(token_rows(weights, asked.filter_width)).float()
