"""A model of a play of the executor's core: each token is a known function of the prefix and of a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.protocol.arrays import int64
from pageant.protocol.verification import NO_DRAFTS

ROWS, LENGTH_MAX, BLOCK_SIZE, VOCABULARY = 3, 40, 4, 32
BLOCKS = LENGTH_MAX // BLOCK_SIZE


def follow(prefix: int, token: int) -> int:
    """Return the hash of a prefix with one more token."""
    return (prefix ^ (token + 1)) * 0xBF58476D1CE4E5B9 % 2**61


def chosen(prefix: int, allowed: int) -> int:
    """Return the token that comes after a prefix, among the tokens whose bits are set."""
    token = (prefix >> 13) % VOCABULARY
    while not allowed >> token & 1:
        token = (token + 1) % VOCABULARY
    return token


ANY = 2**VOCABULARY - 1


def allowed_at(position: int) -> int:
    """Return the bits of the tokens that the grammar allows at a position."""
    return 0x55555555 if position % 2 else 0x33333333


def right_tokens(prompt: tuple[int, ...], count: int, *, guided: bool) -> list[int]:
    """Return the right output of a sequence."""
    prefix, output = 0, list[int]()
    for token in prompt:
        prefix = follow(prefix, token)
    for place in range(count):
        output.append(chosen(prefix, allowed_at(len(prompt) + place) if guided else ANY))
        prefix = follow(prefix, output[-1])
    return output


@dataclass(frozen=True, kw_only=True)
class Kept(PendingSample):
    """A pending sample: the prefixes of the rows that draw, and the rows."""

    prefixes: list[int]
    rows: np.ndarray

    def part(self, places: np.ndarray) -> Kept:
        return Kept(
            places=self.places[places],
            guided=self.guided.part(places),
            prefixes=[self.prefixes[place] for place in places.tolist()],
            rows=self.rows[places],
        )


class Runner:
    """A runner that keeps the hash of the prefix by row and position. A token follows from the hash and a mask."""

    def __init__(self, is_ready: Callable[[], bool], note_move: Callable[[Any], None]) -> None:
        self._is_ready = is_ready
        self._prefixes: dict[tuple[int, int], int] = {}
        self._last_drawn = [0] * ROWS
        self.host = SimpleNamespace(move=note_move)

    def launch(self, inputs: Any) -> Any:
        tokens = inputs.token_ids.tolist()
        for at, row in zip(inputs.unknown.tolist(), inputs.unknown_rows.tolist(), strict=True):
            tokens[at] = self._last_drawn[row]
        rows = np.repeat(_rows_of(inputs), np.diff(inputs.query_starts)).tolist()
        for row, position, token in zip(rows, inputs.positions.tolist(), tokens, strict=True):
            before = self._prefixes[row, position - 1] if position else 0
            self._prefixes[row, position] = follow(before, token)
        drawing = zip(inputs.rows.tolist(), inputs.sampling.position.tolist(), strict=True)
        prefixes = [self._prefixes[row, position - 1] for row, position in drawing]
        if inputs.guided is None:
            return self._draw(prefixes, inputs.rows, [ANY] * len(prefixes))
        places = np.arange(len(prefixes))
        kept = Kept(places=places, guided=inputs.guided, prefixes=prefixes, rows=inputs.rows)
        return kept if len(inputs.guided.late) else self.draw(kept)

    def draw(self, kept: PendingSample) -> Any:
        assert isinstance(kept, Kept)
        guided, masks = kept.guided, [ANY] * len(kept.prefixes)
        late, deferred = guided.late, guided.deferred
        for place, bits in zip(*guided.present(), strict=True):
            masks[place] = int(bits.view(np.uint32)[0])
        drawn = self._draw(kept.prefixes, kept.rows, masks)
        drawn.missing, drawn.failed = late, guided.failures()
        drawn.late = kept.part(deferred) if len(deferred) else None
        return drawn

    def _draw(self, prefixes: list[int], rows: np.ndarray, masks: list[int]) -> Any:
        tokens = list(map(chosen, prefixes, masks))
        for row, token in zip(rows.tolist(), tokens, strict=True):
            self._last_drawn[row] = token
        return SimpleNamespace(
            ready=self._is_ready(),
            token_ids=lambda: np.array(tokens, np.int64),
            logprobs=lambda: (None, None),
            pooled=lambda: None,
            failed={},
            missing=int64(),
            late=None,
            proposed=NO_DRAFTS,
            drafting_seconds=0.0,
        )


def _rows_of(inputs: Any) -> np.ndarray:
    """Return the rows of a step's sequences: a row's blocks are its own for ever."""
    return inputs.block_tables[0, :, 0] // BLOCKS
