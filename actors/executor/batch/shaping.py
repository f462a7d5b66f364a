"""Shaping of logits before a token is drawn from them, for the rows that ask for it.

In vLLM's order, all in float32, before the temperature and the filters (see `pageant.kernels.sampling`):
1. `allowed_token_ids`: all other tokens go to minus infinity. So does the last token of each of the bad words
   whose other tokens the output ends with.
2. `min_tokens`: so do the tokens that would end the row, until it has as many as that. Where that leaves none of the
   allowed ones, ends are given up, and then bad words.
3. `logit_bias` is added.
4. Penalties. repetition_penalty, for tokens of the prompt or the output: a logit above 0 is divided by it,
   one below 0 multiplied (Keskar et al.: CTRL, 2019). Then, for tokens of the output, frequency_penalty
   times their count is taken off, and then presence_penalty.
Where a row has thought as much as it may, only the next token of the mark that ends its thoughts is left, and none of
these matters (see `thoughts`).

A row's tokens are counted once, when it is added, and then one by one as they are drawn; a resumed row brings
all its tokens along, so its counts are what they were. A step gathers only the logits of tokens that occur.
Counts for the whole vocabulary were turned down: 256 rows of 150,000 tokens would be read for each token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.given_tokens import GivenTokens
from pageant.actors.executor.batch.thoughts import ThoughtBudget
from pageant.protocol.stepping import NewSequence

if TYPE_CHECKING:
    from torch import Tensor

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

_TINY = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Entries:
    """Distinct entries [N] of a step's logits [D, V]; `values` [N], or none, say more about each."""

    rows: Int64
    tokens: Int64
    values: Float32

    def __len__(self) -> int:
        return len(self.tokens)

    def of_row(self, row: int) -> list[int]:
        """The tokens of one of the D rows."""
        found: list[int] = self.tokens[self.rows == row].tolist()
        return found


_NO_VALUES = np.empty(0, np.float32)
_NO_TOKENS = np.empty(0, np.int64)
_NOTHING_AHEAD: dict[int, list[int]] = {}
_NONE = Entries(np.empty(0, np.int64), np.empty(0, np.int64), _NO_VALUES)


@dataclass(frozen=True)
class Shaping:
    """One step's, by entries of its logits; empty where no row asks for it.

    The values of `counts` are how often the output holds each token; `penalties` [D, 3] are each row's
    repetition, frequency and presence penalty.
    """

    penalties: Float32
    allowed: Entries = _NONE
    forbidden: Entries = _NONE
    bias: Entries = _NONE
    counts: Entries = _NONE


NOTHING = Shaping(_NO_VALUES)


class TokenCounts:
    """The distinct tokens of a row and how often its output holds each: 0 for those of the prompt alone."""

    def __init__(self, prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]) -> None:
        drawn, counts = np.unique(output, return_counts=True)
        tokens = np.union1d(prompt, drawn).astype(np.int64)
        self._tokens = tokens
        self._counts = np.zeros(len(tokens), np.float32)
        self._counts[np.searchsorted(tokens, drawn)] = counts
        self._places = {token: place for place, token in enumerate(tokens.tolist())}

    def add(self, token: int) -> None:
        """Counts a token that was drawn."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):  # full: twice the room
            self._tokens = np.concatenate([self._tokens, np.zeros(place + 16, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(place + 16, np.float32)])
        self._tokens[place] = token
        self._counts[place] += 1

    def arrays(self, ahead: Sequence[int] = ()) -> tuple[Int64, Float32]:
        """Tokens and counts, with drafts that may follow; as views that are good until the next `add`."""
        tokens, counts = self._tokens[: len(self._places)], self._counts[: len(self._places)]
        if not ahead:
            return tokens, counts
        new = [token for token in dict.fromkeys(ahead) if token not in self._places]
        places = self._places | {token: len(tokens) + place for place, token in enumerate(new)}
        counts = np.concatenate([counts, np.zeros(len(new), np.float32)])
        np.add.at(counts, [places[token] for token in ahead], 1)
        return np.concatenate([tokens, np.array(new, np.int64)]), counts


class BadWords:
    """A row's, as token ids, and the end of its output."""

    def __init__(self, words: tuple[tuple[int, ...], ...], output: list[int]) -> None:
        self.length_max = max(map(len, words))
        self.tail = deque(output, maxlen=self.length_max)
        self._words = words

    def endings(self, ahead: Sequence[int] = ()) -> Int64:
        """The tokens that would complete one of them now, or after some drafts."""
        tail = (*self.tail, *ahead)
        found = [word[-1] for word in self._words if _ends_with(tail, word[:-1])]
        return np.array(found, np.int64)


def _ends_with(tokens: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return not end or tokens[-len(end) :] == end


@dataclass
class _Row:
    """Parameters that shape one row of the batch."""

    allowed: Int64
    forbidden: Int64
    min_position: int  # from which nothing is forbidden any more
    biased: Int64
    bias: Float32
    counts: TokenCounts | None
    penalties: tuple[float, float, float]  # repetition, frequency, presence
    bad_words: BadWords | None
    thoughts: ThoughtBudget | GivenTokens | None

    @property
    def follows_tokens(self) -> bool:
        """Tell whether its logits depend on the tokens that it draws."""
        if self.thoughts is not None and self.thoughts.is_near:
            return True
        return self.counts is not None or (self.bad_words is not None and self.bad_words.length_max > 1)

    def forced(self, ahead: Sequence[int] = ()) -> Int64:
        """The one token that is left after some drafts, if its thoughts have come to their bound."""
        token = self.thoughts.forced(ahead) if self.thoughts is not None else None
        return _NO_TOKENS if token is None else np.array([token], np.int64)

    def take(self, token: int) -> None:
        """A token was drawn."""
        if self.counts is not None:
            self.counts.add(token)
        if self.bad_words is not None:
            self.bad_words.tail.append(token)
        if self.thoughts is not None:
            self.thoughts.take(token)
            if self.thoughts.is_over:
                self.thoughts = None

    def forbidden_at(self, position: int, ahead: Sequence[int] = ()) -> Int64:
        """The tokens that are not drawn at a position, after some drafts. Where only some are allowed, one of these is
        left: ends are given up for that, and then what bad words forbid."""
        ends = self.forbidden if position < self.min_position else _NO_TOKENS
        endings = _NO_TOKENS if self.bad_words is None else self.bad_words.endings(ahead)
        both = np.union1d(ends, endings) if len(endings) else ends
        if not (len(self.allowed) and len(both)):
            return both
        return next((some for some in (both, endings) if not np.isin(self.allowed, some).all()), _NO_TOKENS)

    def shapes(self, position: int) -> bool:
        """Tell whether it changes the logits of this position or of one after it."""
        held = len(self.forbidden) if position < self.min_position else 0
        follows = self.counts is not None or self.bad_words is not None or self.thoughts is not None
        return follows or len(self.allowed) + len(self.biased) + held > 0


class Shapers:
    """The rows of the batch whose logits are shaped; the others cost nothing here."""

    def __init__(self, end_tokens: tuple[int, ...]) -> None:
        self._end_tokens = end_tokens
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    @property
    def count_tokens(self) -> bool:
        """Tell whether any row's logits depend on the tokens before."""
        return any(row.follows_tokens for row in self._rows.values())

    def any_follows(self, rows: Iterable[int]) -> bool:
        """Tell whether the logits of any of these depend on the tokens before."""
        return bool(self._rows) and any(row in self._rows and self._rows[row].follows_tokens for row in rows)

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()

    def free(self, rows: Iterable[int]) -> None:
        """Forgets some rows."""
        if self._rows:
            for row in rows:
                self._rows.pop(int(row), None)

    def add(self, sequence: NewSequence) -> None:
        """Takes a new sequence, or a resumed one, in place of what was in its row."""
        self._rows.pop(sequence.row, None)
        params = sequence.params
        shaped = params.has_penalties or params.logit_bias or params.allowed_token_ids or params.min_tokens
        forced = sequence.thinking is not None or params.trace_decode_token_ids is not None
        if shaped or forced or sequence.bad_words:
            row = self._shaped(sequence)
            if row.shapes(len(sequence.token_ids)):
                self._rows[sequence.row] = row

    def _shaped(self, sequence: NewSequence) -> _Row:
        params, num_prompt = sequence.params, sequence.num_prompt_tokens
        allowed = np.unique(np.array(params.allowed_token_ids or (), np.int64))
        ends = params.end_tokens(self._end_tokens)
        if len(allowed) and np.isin(allowed, ends).all():
            ends = ()  # something must be left to draw
        counts = None
        if params.has_penalties:
            # Embeddings that stand in for a prompt are no tokens that could be repeated.
            has_tokens = sequence.embedded is None or sequence.embedded.places is not None
            seen = num_prompt if params.repetition_penalty != 1 and has_tokens else 0
            counts = TokenCounts(sequence.token_ids[:seen], sequence.token_ids[num_prompt:])
        bias = params.logit_bias or {}
        return _Row(
            allowed=allowed,
            forbidden=np.unique(np.array(ends, np.int64)),
            min_position=num_prompt + params.min_tokens,
            biased=np.fromiter(bias.keys(), np.int64, len(bias)),
            bias=np.fromiter(bias.values(), np.float32, len(bias)),
            counts=counts,
            penalties=(params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
            bad_words=BadWords(sequence.bad_words, sequence.token_ids[num_prompt:].tolist())
            if sequence.bad_words
            else None,
            thoughts=_thoughts(sequence),
        )

    def take(self, rows: npt.NDArray[np.int32], positions: Int64, token_ids: Int64) -> None:
        """Count the tokens that a step drew at these positions: int32 [D], int64 [D] and int64 [D].

        A row is forgotten when nothing shapes what comes after them, not before: packed rows may be packed again.
        """
        if not self._rows:
            return
        for row, position, token in zip(rows.tolist(), positions.tolist(), token_ids.tolist(), strict=True):
            shaped = self._rows.get(row)
            if shaped is not None:
                shaped.take(token)
                if not shaped.shapes(position + 1):
                    del self._rows[row]

    def of_step(
        self,
        rows: npt.NDArray[np.int32],
        positions: Int64,
        ahead: Mapping[int, Sequence[int]] = _NOTHING_AHEAD,
    ) -> Shaping:
        """Return what shapes the logits of these rows, int32 [D], which draw the tokens at these positions, int64 [D].

        Args:
            ahead: the drafts before a place, of those that follow some.
        """
        if not self._rows:
            return NOTHING
        shaped = []
        for index, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            found = self._rows.get(row)
            if found is not None and (index in ahead or found.shapes(position)):
                shaped.append((index, found, position))
        if not shaped:
            return NOTHING
        penalties = np.ones((len(rows), 3), np.float32)
        penalties[[index for index, _, _ in shaped]] = [one.penalties for _, one, _ in shaped]
        forced = {i: tokens for i, row, _ in shaped if len(tokens := row.forced(ahead.get(i, ())))}
        allowed = {i: row.allowed for i, row, _ in shaped} | forced
        if forced:
            shaped = [one for one in shaped if one[0] not in forced]
        return Shaping(
            allowed=_entries((i, tokens, _NO_VALUES) for i, tokens in allowed.items()),
            forbidden=_entries(
                (i, row.forbidden_at(at, ahead.get(i, ())), _NO_VALUES) for i, row, at in shaped
            ),
            bias=_entries((i, row.biased, row.bias) for i, row, _ in shaped),
            counts=_entries(
                (i, *row.counts.arrays(ahead.get(i, ()))) for i, row, _ in shaped if row.counts is not None
            ),
            penalties=penalties,
        )


def _thoughts(sequence: NewSequence) -> ThoughtBudget | GivenTokens | None:
    """Return what forces tokens of a sequence: a bound of its thoughts, or an output that it gives. None is nothing."""
    if (given := sequence.params.trace_decode_token_ids) is not None:
        count = len(sequence.token_ids) - sequence.num_prompt_tokens
        return GivenTokens(given, count) if count < len(given) else None
    budget = sequence.params.thinking_token_budget
    if sequence.thinking is None or budget is None:
        return None
    output = sequence.token_ids[sequence.num_prompt_tokens :].tolist()
    thoughts = ThoughtBudget(sequence.thinking, budget, output)
    return None if thoughts.is_over else thoughts


def _entries(pieces: Iterable[tuple[int, Int64, Float32]]) -> Entries:
    """Joins the rows' tokens and values."""
    some = [piece for piece in pieces if len(piece[1])]
    if not some:
        return _NONE
    rows, tokens, values = zip(*some, strict=True)
    return Entries(
        np.repeat(rows, [len(ids) for ids in tokens]), np.concatenate(tokens), np.concatenate(values)
    )


def shape_logits(logits: Tensor, shaping: Shaping) -> None:
    """Mutates the logits (float32 [D, V]) of one step's drawing rows, in the order of the module's text.

    Each entry is a function of its own logit and its row's parameters, so a row gets the same in any batch.
    """
    if shaping is not NOTHING:
        _keep_allowed(logits, shaping.allowed)
        _forbid(logits, shaping.forbidden)
        _add_bias(logits, shaping.bias)
        _penalise(logits, shaping)


def _keep_allowed(logits: Tensor, allowed: Entries) -> None:
    if len(allowed):
        places = _places(logits, allowed)
        kept = logits[places]
        logits[_on_device(logits, np.unique(allowed.rows))] = float("-inf")
        logits[places] = kept


def _forbid(logits: Tensor, forbidden: Entries) -> None:
    if len(forbidden):
        logits[_places(logits, forbidden)] = float("-inf")


def _add_bias(logits: Tensor, bias: Entries) -> None:
    if len(bias):
        logits[_places(logits, bias)] += _on_device(logits, bias.values)


def _penalise(logits: Tensor, shaping: Shaping) -> None:
    if not len(shaping.counts):
        return
    places, counts = _places(logits, shaping.counts), _on_device(logits, shaping.counts.values)
    repetition, frequency, presence = _on_device(logits, shaping.penalties)[places[0]].unbind(1)
    found = logits[places]
    # A penalty below float32's range must not make NaN of minus infinity, nor infinity of a logit.
    repetition = repetition.clamp(min=_TINY)
    divided = (found / repetition).clamp_(max=_LARGEST)
    found = divided.where(found > 0, found * repetition)
    found -= frequency * counts
    found -= presence * (counts > 0)
    logits[places] = found


def _places(logits: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
    return _on_device(logits, entries.rows), _on_device(logits, entries.tokens)


def _on_device(logits: Tensor, array: npt.NDArray[np.generic]) -> Tensor:
    from pageant.actors.executor.on_device import to_device

    return to_device(array, logits.device)
