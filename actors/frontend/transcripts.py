"""Transcripts of sounds: segments, their texts and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from pageant.actors.frontend.spoken_words import Word, prefixes, words_of

__all__ = ["Segment", "TranscriptionOutput", "pieces", "told"]


class Segment(msgspec.Struct, frozen=True):
    """A piece of text and when it is said, in seconds from the sound's beginning."""

    start: float
    end: float
    token_ids: list[int]
    """Timestamps included."""
    text: str = ""
    avg_logprob: float | None = None
    """Mean log-probability of its window's tokens, of those that the rules allow."""
    temperature: float = 0.0
    """At which its window was written."""
    no_speech_prob: float | None = None
    """Probability that nobody speaks in its window; None where no threshold of it was given."""
    token_times: list[tuple[float, float]] = []
    """When each token begins and ends; empty where times of words were not asked for."""
    words: list[Word] = []
    """Words with their times, where these were asked for and the model has a tokenizer."""


@dataclass(frozen=True)
class TranscriptionOutput:
    """Text of a sound, with its segments."""

    text: str
    language: str | None
    """Its code; None for a model that knows one."""
    duration: float
    """Seconds of the sound."""
    segments: list[Segment] = field(default_factory=list)
    num_windows: int = 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all segments, timestamps included."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def words(self) -> list[Word]:
        """The words of all segments."""
        return [word for segment in self.segments for word in segment.words]


def pieces(segments: Sequence[Segment], end: int) -> list[list[int]]:
    """Return the tokens whose texts `told` takes: of each segment's text, and of its beginnings for its words.

    end: the first token that is a mark or a timestamp.
    """
    found = []
    for segment in segments:
        tokens = [segment.token_ids[place] for place in _spoken(segment, end)]
        found += [tokens, *(prefixes(tokens) if segment.token_times else ())]
    return found


def told(segments: Sequence[Segment], texts: Sequence[str], end: int, language: str | None) -> list[Segment]:
    """Return segments with their texts and words.

    Args:
        texts: those of `pieces`; empty where there is no tokenizer.
        end: see `pieces`.
        language: its code; see `words_of`.
    """
    if not texts:
        return list(segments)
    found, left = [], list(texts)[::-1]
    for segment in segments:
        text, words = left.pop(), list[Word]()
        if segment.token_times:
            times = [segment.token_times[place] for place in _spoken(segment, end)]
            words = words_of([left.pop() for _ in times], times, language)
        found.append(msgspec.structs.replace(segment, text=text, words=words))
    return found


def _spoken(segment: Segment, end: int) -> list[int]:
    """Return the places of a segment's tokens that are no timestamps and marks."""
    return [place for place, token in enumerate(segment.token_ids) if token < end]
