"""The grammar's core: where each guided sequence stands, and what may follow. No I/O, no clock.

It is used by one thread at a time; what takes long releases the GIL.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

K = TypeVar("K", bound=Hashable)
Masks = npt.NDArray[np.int32]
"""[R, W]: token t of row r may follow if bit t % 32 of [r, t // 32] is 1."""


class Opening(NamedTuple):
    """A sequence that begins, after these tokens of its output."""

    key: Any
    grammar: LLMatcher
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False


class _Guide:
    """A sequence: its matcher, how many tokens that has taken, and why it takes no more."""

    __slots__ = ("failure", "ignore_eos", "length", "matcher")

    def __init__(self, matcher: LLMatcher, ignore_eos: bool) -> None:
        self.matcher, self.ignore_eos = matcher, ignore_eos
        self.length = 0  # in tokens
        self.failure: str | None = None


class Guides:
    """All guided sequences, each under a key of the caller's choice.

    A sequence ends by an end token: where the grammar may end, those are among what may follow, and where it has
    come to its end, nothing else is.

    Args:
        end_tokens: the model's.
        threads: that masks of different grammars are spread over.
    """

    def __init__(self, vocab_size: int, end_tokens: Sequence[int], threads: int) -> None:
        from llguidance import LLExecutor

        self._words = -(-vocab_size // 32)
        self._executor = LLExecutor(threads)
        self._guides: dict[Hashable, _Guide] = {}
        self._ends = np.zeros(self._words, np.int32)
        for token in end_tokens:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def __len__(self) -> int:
        return len(self._guides)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._guides

    def open(self, opened: Opening) -> None:
        """Begins a sequence, in place of one of that key."""
        self._guides[opened.key] = _Guide(opened.grammar.deep_copy(), opened.ignore_eos)
        self.advance(opened.key, opened.token_ids)

    def close(self, key: Hashable) -> None:
        """Forgets a sequence, open or not."""
        self._guides.pop(key, None)

    def advance(self, key: Hashable, token_ids: Sequence[int]) -> None:
        """The next tokens of a sequence. What does not fit the grammar fails it."""
        guide = self._guides[key]
        if token_ids and guide.failure is None:
            if guide.matcher.consume_tokens(list(token_ids)):
                guide.length += len(token_ids)
            else:
                guide.failure = f"the output has left its grammar after {guide.length} tokens"

    def step(
        self, opened: Sequence[Opening], drawn: Sequence[tuple[Hashable, int]], keys: Sequence[Hashable]
    ) -> tuple[Masks, dict[int, str]]:
        """Begins sequences, takes tokens of some, and returns the masks of some."""
        for one in opened:
            self.open(one)
        for key, token in drawn:
            self.advance(key, (token,))
        return self.masks(keys)

    def masks(self, keys: Sequence[Hashable]) -> tuple[Masks, dict[int, str]]:
        """What may follow each of these sequences; and why some, by index, have no mask and never will."""
        guides = [self._guides[key] for key in keys]
        bits = np.zeros((len(guides), self._words), np.int32)
        work = [(guide.matcher, row) for row, guide in enumerate(guides) if guide.failure is None]
        if work:
            self._executor.unsafe_compute_mask_ptr(work, bits.ctypes.data, self._words * 4, len(guides))
        for row in np.flatnonzero(~bits.any(axis=1)).tolist():
            guides[row].failure = guides[row].failure or "nothing can follow"
        failed = {}
        for row, guide in enumerate(guides):
            if guide.failure is None and guide.matcher.is_error():
                guide.failure = f"it became too costly to follow ({guide.matcher.stop_reason()})"
            if guide.failure is not None:
                failed[row] = guide.failure
            elif guide.ignore_eos:
                self._forbid_ends(bits[row : row + 1])
        return bits, failed

    def draft_masks(self, drafts: Sequence[tuple[K, Sequence[int]]]) -> dict[K, Masks]:
        """What may follow sequences, and after each of their drafted tokens: [1 + drafts, W] for each sequence.

        They stay where they are. After the first draft that does not fit, everything may follow: it is of no account.
        Sequences are left out that their drafts would lead to failure.
        """
        work, first = [], 0
        for key, tokens in drafts:
            guide = self._guides[key]
            if guide.failure is None:
                work.append((guide.matcher.deep_copy(), first, list(tokens)))  # what fails is the copy
            first += 1 + len(tokens)
        bits = np.full((first, self._words), -1, np.int32)
        self._executor.unsafe_compute_mask_ptr_with_draft_token(
            work, bits.ctypes.data, self._words * 4, len(bits)
        )
        copies = {first: matcher for matcher, first, _ in work}
        found, first = {}, 0
        for key, tokens in drafts:
            some = bits[first : first + 1 + len(tokens)]
            if first in copies and not copies[first].is_error() and some.any(axis=1).all():
                if self._guides[key].ignore_eos:
                    self._forbid_ends(some)
                found[key] = some
            first += len(some)
        return found

    def _forbid_ends(self, bits: Masks) -> None:
        """Where something else may follow."""
        others = bits & ~self._ends
        bits[:] = np.where(others.any(axis=1, keepdims=True), others, bits)

    def check_integrity(self) -> None:
        """Asserts what must always hold."""
        for key, guide in self._guides.items():
            fine = guide.failure is not None or not guide.matcher.is_error()
            assert fine, f"sequence {key!r} is in error, and nobody has said so"
