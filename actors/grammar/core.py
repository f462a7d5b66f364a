"""The grammar's core: where each guided sequence stands, and what may follow. No I/O, no clock.

It is used by one thread at a time; what takes long releases the GIL. A step's sequences are handed to llguidance
together, twice: it takes their tokens, then it writes their masks (`masking`). Twins, sequences that follow the same
grammar and have said the same so far, as parallel samples and a batch of like requests do at first, have one mask
made for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.grammar.masking import Bits, DraftMasking, Here, InThreads, Masking

if TYPE_CHECKING:
    from llguidance import LLMatcher

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
HERE = Here()


class Opening(NamedTuple):
    """A sequence that begins, after these tokens of its output; the next one is at `position`."""

    guide: int
    grammar: LLMatcher
    position: int
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False


class Masks(NamedTuple):
    """Masks of R rows, and the sequences that have none."""

    guides: Int64
    """The guides of the rows, [R]."""
    positions: Int64
    """The positions that the rows draw, [R]."""
    ahead: Int64
    """The number of drafts that come before each row's position, [R]."""
    bits: Bits
    """The tokens that may follow, a bit each, uint32 [R, words]."""
    failed: dict[int, str]
    """Why guides have no mask and never will, by guide."""
    lost: list[int]
    """Guides of sequences that are not where they were said to be."""
    made: int
    """The number of masks that were computed for all of it."""


class _Guide:
    """A sequence: its matcher, its number, where its output begins and its next token is, and why it takes no more.

    What `twins` is, only its twins have; None is none.
    """

    __slots__ = ("begin", "failure", "ignore_eos", "matcher", "number", "position", "twins")

    def __init__(self, opened: Opening) -> None:
        self.number, self.position, self.ignore_eos = opened.guide, opened.position, opened.ignore_eos
        self.begin = opened.position - len(opened.token_ids)
        self.matcher = opened.grammar.deep_copy()
        self.failure: str | None = None
        self.twins: object | None = None


class Guides:
    """All guided sequences of one executor, by their numbers.

    A sequence ends by an end token: where the grammar may end, those are among what may follow, and where it has
    come to its end, nothing else is.

    Args:
        end_tokens: the model's.
        threads: that masks of different grammars are spread over, unless they are computed by the caller.
        masking: for matchers that are not llguidance's, whichever thread calls.
    """

    def __init__(
        self,
        vocab_size: int,
        end_tokens: Sequence[int],
        threads: int,
        masking: DraftMasking | None = None,
    ) -> None:
        self._words = -(-vocab_size // 32)
        self._threads: DraftMasking = masking or InThreads(threads)
        self._here: Masking = masking or HERE
        self._guides: dict[int, _Guide] = {}
        ends = np.zeros(self._words, np.uint32)
        for token in end_tokens:
            ends[token // 32] |= np.uint32(1 << token % 32)
        self._end_words = np.flatnonzero(ends)
        self._ends = ends[self._end_words].view(np.int32)

    def __len__(self) -> int:
        return len(self._guides)

    def __contains__(self, guide: int) -> bool:
        return guide in self._guides

    def step(
        self,
        closed: Iterable[int] = (),
        opened: Sequence[Opening] = (),
        guides: Sequence[int] = (),
        positions: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        *,
        here: bool = False,
    ) -> Masks:
        """Ends and begins sequences, in place of those of their numbers, and gives `guides[i]` the token at
        `positions[i]`. Returns what may follow all that have begun or gone on.

        Args:
            here: in the thread that calls, without the others.
        """
        masking: Masking = self._here if here else self._threads
        for number in closed:
            self._guides.pop(number, None)
        moved = {one.guide: self._open(one) for one in opened}
        _pair((moved[one.guide], (id(one.grammar), tuple(one.token_ids))) for one in opened)
        drawn: dict[_Guide, int] = {}
        lost = []
        for number, position, token in zip(guides, positions, token_ids, strict=True):
            guide = self._guides.get(number)
            if guide is None or guide.position != position:
                lost.append(number)
                continue
            if guide in drawn:  # drafts were right: the one before goes alone
                _consume({guide: drawn[guide]}, masking)
                guide.twins = None
            drawn[guide] = token
            guide.position += 1
            moved[number] = guide
        _consume(drawn, masking)
        _pair((guide, (guide.twins, token)) for guide, token in drawn.items() if guide.twins is not None)
        return self._masks(list(moved.values()), lost, masking)

    def _open(self, opened: Opening) -> _Guide:
        guide = self._guides[opened.guide] = _Guide(opened)
        if opened.token_ids and not guide.matcher.consume_tokens(list(opened.token_ids)):
            guide.failure = _left(0)
        return guide

    def _masks(self, guides: list[_Guide], lost: list[int], masking: Masking) -> Masks:
        makers, of_row = _makers(guides)
        work = [(guide.matcher, row) for row, guide in enumerate(makers) if guide.failure is None]
        bits = np.empty((len(makers), self._words), np.int32)
        if len(work) < len(makers):
            bits[:] = 0
        if work:
            masking.mask(work, bits)
        if len(makers) < len(guides):
            bits = bits[of_row]
        goes_on, may_end = self._without_ends(bits, [guide.ignore_eos for guide in guides])
        failed = {}
        for row in np.flatnonzero(~goes_on).tolist():  # a matcher in error lets the output end
            failure = _failure_of(guides[row], makers[of_row[row]].matcher, may_end=bool(may_end[row]))
            if failure is not None:
                failed[row] = guides[row].failure = failure
        reasons = {guides[row].number: reason for row, reason in failed.items()}
        if failed:
            bits = np.delete(bits, list(failed), axis=0)
            guides = [guide for row, guide in enumerate(guides) if row not in failed]
        return Masks(
            guides=np.array([guide.number for guide in guides], np.int64),
            positions=np.array([guide.position for guide in guides], np.int64),
            ahead=np.zeros(len(guides), np.int64),
            bits=bits,
            failed=reasons,
            lost=lost,
            made=len(work),
        )

    def draft_masks(
        self,
        guides: Sequence[int],
        positions: Sequence[int],
        counts: Sequence[int],
        token_ids: Sequence[int],
    ) -> Masks:
        """Return what may follow sequences and each of their drafted tokens: `counts[i]` of them from `positions[i]`.

        They stay where they are. After the first draft that does not fit, everything may follow: it is of no account.
        Sequences are left out that are not where their drafts begin, or that these would lead to failure.
        """
        copies, first = [], 0
        coming = iter(token_ids)
        for number, position, count in zip(guides, positions, counts, strict=True):
            tokens = [next(coming) for _ in range(count)]
            guide = self._guides.get(number)
            if guide is not None and guide.position == position and guide.failure is None:
                copies.append((guide, guide.matcher.deep_copy(), first, tokens))  # what fails is the copy
                first += 1 + count
        bits = np.full((first, self._words), -1, np.int32)
        if copies:
            work = [(matcher, first, tokens) for _, matcher, first, tokens in copies]
            self._threads.mask_drafts(work, bits)
        endless = [guide.ignore_eos for guide, _, _, tokens in copies for _ in range(1 + len(tokens))]
        goes_on, may_end = self._without_ends(bits, endless)
        fine = goes_on | may_end
        rows: list[int] = []
        drafted: list[tuple[int, int, int]] = []  # number, position, and how many drafts come before
        for guide, matcher, first, tokens in copies:
            span = range(first, first + 1 + len(tokens))
            if matcher.is_error() or not fine[span.start : span.stop].all():
                continue
            rows += span
            drafted += [(guide.number, guide.position + ahead, ahead) for ahead in range(len(span))]
        numbers, places, ahead = (column.copy() for column in np.array(drafted, np.int64).reshape(-1, 3).T)
        found = bits if len(rows) == len(bits) else bits[rows]
        return Masks(
            guides=numbers, positions=places, ahead=ahead, bits=found, failed={}, lost=[], made=len(bits)
        )

    def _without_ends(self, bits: Bits, endless: list[bool]) -> tuple[Bools, Bools]:
        """Return which rows [R] let anything but an end follow, and which an end.

        Endless rows do not end where they go on: their bits are mutated.
        """
        said = bits[:, self._end_words]
        ends = said & self._ends
        may_end = _says_any(ends)
        if not may_end.any():  # as in most steps
            return _says_any(bits), may_end
        bits[:, self._end_words] = said ^ ends
        goes_on = _says_any(bits)
        ending = np.flatnonzero(may_end & ~(goes_on & np.array(endless, np.bool_)))
        bits[ending[:, None], self._end_words] = said[ending]
        return goes_on, may_end

    def check_integrity(self) -> None:
        """Asserts what must always hold."""
        for number, guide in self._guides.items():
            assert guide.number == number, f"sequence {number} goes by {guide.number}"
            fine = guide.failure is not None or not guide.matcher.is_error()
            assert fine, f"sequence {number} is in error, and nobody has said so"


def _says_any(bits: Bits) -> Bools:
    """[R], which rows let anything follow."""
    found: Bools = np.logical_or.reduce(bits.view(np.bool_), axis=1)  # of bytes: it stops at the first
    return found


def _consume(drawn: Mapping[_Guide, int], masking: Masking) -> None:
    """The next token of some sequences. What does not fit the grammar fails it."""
    guides = [guide for guide in drawn if guide.failure is None]
    if not guides:
        return
    taken = masking.consume([(guide.matcher, drawn[guide]) for guide in guides])
    if not all(taken):
        for guide in (guide for guide, fits in zip(guides, taken, strict=True) if not fits):
            guide.failure = _left(guide.position - 1 - guide.begin)


def _pair(guides: Iterable[tuple[_Guide, tuple[object, object]]]) -> None:
    """Makes those of some sequences twins that have the same beside them, and of no other any."""
    groups: dict[tuple[object, object], list[_Guide]] = {}
    for guide, said in guides:
        groups.setdefault(said, []).append(guide)
    for group in groups.values():
        twins = object() if len(group) > 1 else None
        for guide in group:
            guide.twins = twins


def _makers(guides: Iterable[_Guide]) -> tuple[list[_Guide], list[int]]:
    """Return the sequences that have a mask made, for themselves and for their twins; and whose is each one's."""
    places: dict[object, int] = {}
    makers: list[_Guide] = []
    of_each = []
    for guide in guides:
        place = places.setdefault(guide if guide.twins is None else guide.twins, len(makers))
        if place == len(makers):
            makers.append(guide)
        of_each.append(place)
    return makers, of_each


def _left(tokens: int) -> str:
    return f"the output has left its grammar after {tokens} tokens"


def _failure_of(guide: _Guide, matcher: LLMatcher, *, may_end: bool) -> str | None:
    """Return why nothing but an end may follow, if that is a failure. The matcher is the one that has made its mask."""
    if guide.failure is not None:
        return guide.failure
    if matcher.is_error():
        return f"it became too costly to follow ({matcher.stop_reason()})"
    return None if may_end else "nothing can follow"
