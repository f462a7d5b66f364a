"""Masks of many sequences by llguidance: by threads of its own, or in this one.

Its threads take several sequences at a time, without the GIL. To hand them a step's work and to wait for them, while
every core computes a forward pass, costs more than the masks themselves do for most grammars. So what is known to cost
little is done here, which lets go of the GIL by sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Bits = npt.NDArray[np.int32]
"""[R, W]: token t of row r may follow if bit t % 32 of [r, t // 32] is 1."""


class Masking(Protocol):
    """A way of doing that. All sequences of one call are different ones."""

    def consume(self, work: Sequence[tuple[LLMatcher, int]]) -> Sequence[bool]:
        """Gives each its next token; whether that fits its grammar."""

    def mask(self, work: Sequence[tuple[LLMatcher, int]], bits: Bits) -> None:
        """Writes to the row of each what may follow it. Mutates `bits`."""


class DraftMasking(Masking, Protocol):
    """One that goes along drafts, too."""

    def mask_drafts(self, work: Sequence[tuple[LLMatcher, int, Sequence[int]]], bits: Bits) -> None:
        """Write what may follow each, and follows after each of its drafts, to rows from its first on.

        Rows behind a draft that does not fit stay as they are. Mutates the matchers and `bits`.
        """


class Here:
    """One sequence after another, in the thread that calls."""

    def consume(self, work: Sequence[tuple[LLMatcher, int]]) -> Sequence[bool]:
        """See `Masking`."""
        return [matcher.consume_token(token) for matcher, token in work]

    def mask(self, work: Sequence[tuple[LLMatcher, int]], bits: Bits) -> None:
        """See `Masking`."""
        address, num_bytes = bits.ctypes.data, bits.strides[0]
        for matcher, row in work:
            matcher.unsafe_compute_mask_ptr(address + row * num_bytes, num_bytes)


class InThreads:
    """Computes masks by so many threads of llguidance's own."""

    def __init__(self, threads: int) -> None:
        from llguidance import LLExecutor

        self.executor = LLExecutor(threads)

    def consume(self, work: Sequence[tuple[LLMatcher, int]]) -> Sequence[bool]:
        """See `Masking`."""
        return self.executor.consume_token_par(list(work))

    def mask(self, work: Sequence[tuple[LLMatcher, int]], bits: Bits) -> None:
        """See `Masking`."""
        self.executor.unsafe_compute_mask_ptr(list(work), bits.ctypes.data, bits.strides[0], len(bits))

    def mask_drafts(self, work: Sequence[tuple[LLMatcher, int, Sequence[int]]], bits: Bits) -> None:
        """See `DraftMasking`."""
        lists = [(matcher, first, list(tokens)) for matcher, first, tokens in work]
        self.executor.unsafe_compute_mask_ptr_with_draft_token(
            lists, bits.ctypes.data, bits.strides[0], len(bits)
        )
