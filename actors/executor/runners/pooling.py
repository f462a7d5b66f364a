"""Pooling on the device: from the hidden states of a step's tokens to the results of its sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.batch.pooled import PooledPart, PooledStep
from pageant.actors.executor.on_device import to_device
from pageant.models.pooling.pooler import Pooler
from pageant.protocol.pooling import PooledRows, PoolingParams, join_pooled

__all__ = ["Pooling"]


@dataclass
class _Partly:
    """Pooling of a sequence so far, between its chunks."""

    num_tokens: int = 0
    states: Tensor | None = None
    """float32 [hidden_size]: the sum of all states so far, or the first of them."""
    vectors: list[Tensor] = field(default_factory=list)
    """float32 [tokens, size] of each chunk, where a vector of each token is asked for."""


class Pooling:
    """Pools the hidden states of sequences, and keeps those of sequences that are computed in chunks.

    Belongs to the computing thread.
    """

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler
        self._kind = pooler.spec.pool
        self._partly: dict[int, _Partly] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that the weights take."""
        return self._pooler.num_bytes

    def begin(self, step: PooledStep) -> None:
        """Get ready for a step. Forgets what an aborted sequence has left in a row that another one begins in."""
        for part in step.parts:
            if part.begins:
                self._partly.pop(part.row, None)

    def reads_last(self, step: PooledStep) -> bool:
        """Tell whether only the hidden states of the last tokens of sequences are read."""
        return self._kind == "last" and not any(part.params.is_of_tokens for part in step.parts)

    def reads_first(self, step: PooledStep) -> bool:
        """Tell whether all sequences are whole, and only the hidden states of their first tokens are read."""
        whole = all(part.begins and part.place is not None for part in step.parts)
        return self._kind == "cls" and whole and not any(part.params.is_of_tokens for part in step.parts)

    def take(self, step: PooledStep, hidden: Tensor) -> PooledTensors:
        """Take in a step's hidden states. Returns the results of sequences that end with it.

        hidden: [T, hidden_size] of the model's dtype, such as bfloat16.
        """
        results, waiting = PooledTensors(), list[tuple[PooledPart, Tensor]]()
        means = self._sums(step, hidden) if self._kind == "mean" else None
        for index, part in enumerate(step.parts):
            if self._is_of_tokens(part):
                self._take_tokens(part, hidden, results)
                continue
            states = self._states(part, hidden, None if means is None else means[index])
            if states is not None:
                waiting.append((part, states))
        self._finish(waiting, results)
        return results

    def take_read(self, step: PooledStep, hidden: Tensor) -> PooledTensors:
        """Take in the only states that are read; see `reads_last` and `reads_first`.

        hidden: [sequences that end, hidden_size] of the model's dtype, such as bfloat16.
        """
        results = PooledTensors()
        ended = [part for part in step.parts if part.place is not None]
        self._finish(list(zip(ended, hidden.float(), strict=True)), results)
        return results

    def _is_of_tokens(self, part: PooledPart) -> bool:
        return self._kind == "all" or part.params.is_of_tokens

    def _sums(self, step: PooledStep, hidden: Tensor) -> Tensor:
        """Return float32 [parts, hidden_size], the sums of the states of each part."""
        parts = step.parts
        lengths = np.array([part.tokens.stop - part.tokens.start for part in parts])
        wide = hidden.float()
        if int(lengths.sum()) != len(hidden):  # others' tokens are among them
            tokens = np.concatenate([np.arange(part.tokens.start, part.tokens.stop) for part in parts])
            wide = wide[to_device(tokens, hidden.device)]
        return torch.segment_reduce(wide, "sum", lengths=to_device(lengths, hidden.device), axis=0)

    def _states(self, part: PooledPart, hidden: Tensor, total: Tensor | None) -> Tensor | None:
        """Return float32 [hidden_size], the pooled state of a sequence that ends; None of one that goes on."""
        if part.begins and part.place is not None:
            count = part.tokens.stop - part.tokens.start
            return self._whole(part, hidden) if total is None else total / count
        if self._kind == "last":
            return None if part.place is None else hidden[part.tokens.stop - 1].float()
        if part.begins:
            self._partly[part.row] = _Partly()
        partly = self._partly[part.row]
        partly.num_tokens += part.tokens.stop - part.tokens.start
        if total is not None:
            partly.states = total.clone() if partly.states is None else partly.states + total
        elif partly.states is None:
            partly.states = hidden[part.tokens.start].float()
        if part.place is None:
            return None
        del self._partly[part.row]
        return partly.states / partly.num_tokens if total is not None else partly.states

    def _whole(self, part: PooledPart, hidden: Tensor) -> Tensor:
        return hidden[part.tokens.start if self._kind == "cls" else part.tokens.stop - 1].float()

    def _take_tokens(self, part: PooledPart, hidden: Tensor, results: PooledTensors) -> None:
        if part.begins:
            self._partly[part.row] = _Partly()
        vectors = self._pooler(hidden[part.tokens].float())
        partly = self._partly[part.row]
        partly.vectors.append(self._finished(vectors, part.params))
        if part.place is not None:
            results.add([part.place], torch.cat(self._partly.pop(part.row).vectors)[None])

    def _finish(self, waiting: list[tuple[PooledPart, Tensor]], results: PooledTensors) -> None:
        """Compute what follows pooling for all sequences that end; together those that want the same."""
        if not waiting:
            return
        vectors = self._pooler(torch.stack([states for _, states in waiting]))
        by_wish: dict[tuple[int | None, bool | None], list[int]] = {}
        for index, (part, _) in enumerate(waiting):
            by_wish.setdefault((part.params.dimensions, part.params.activates), []).append(index)
        for (dimensions, activates), indices in by_wish.items():
            some = vectors if len(indices) == len(waiting) else vectors[indices]
            finished = self._pooler.finish(some, dimensions=dimensions, activates=activates)
            places = [place for index in indices if (place := waiting[index][0].place) is not None]
            results.add(places, finished[:, None])

    def _finished(self, vectors: Tensor, params: PoolingParams) -> Tensor:
        return self._pooler.finish(vectors, dimensions=params.dimensions, activates=params.activates)


class PooledTensors:
    """Results on the device. See `model_runner.PooledResults`."""

    def __init__(self) -> None:
        self._results: list[tuple[list[int], Tensor]] = []

    def add(self, places: list[int], vectors: Tensor) -> None:
        """Add the vectors of R drawing entries, float32 [R, height, width]."""
        self._results.append((places, vectors))

    def columns(self) -> PooledRows | None:
        """Return the results by columns. Waits for the device."""
        return join_pooled(
            pair
            for places, vectors in self._results
            for pair in zip(places, vectors.cpu().numpy(), strict=True)
        )
