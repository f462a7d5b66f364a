"""Forms of a transcript: JSON, plain text, and subtitles."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from pageant.actors.frontend.spoken_words import Word
from pageant.actors.frontend.transcripts import Segment, TranscriptionOutput

__all__ = [
    "Transcript",
    "TranscriptDelta",
    "TranscriptDone",
    "TranscriptFormat",
    "TranscriptSegment",
    "VerboseTranscript",
    "brief",
    "subtitles",
    "usage_of",
    "verbose",
]

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class HeardUsage(msgspec.Struct, kw_only=True):
    """The seconds of a sound, begun ones counted whole."""

    seconds: int
    type: Literal["duration"] = "duration"


class Transcript(msgspec.Struct, kw_only=True):
    """Text of a sound."""

    text: str
    usage: HeardUsage | None = None


class TranscriptSegment(msgspec.Struct, kw_only=True):
    """A piece of text, and when it is said, in seconds."""

    id: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: float | None = None


class VerboseTranscript(Transcript, kw_only=True):
    """Text of a sound, with times."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    segments: list[TranscriptSegment] | None = None
    words: list[Word] | None = None


class TranscriptDelta(msgspec.Struct, kw_only=True):
    """The text of the next window of a sound."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"


class TranscriptDone(msgspec.Struct, kw_only=True):
    """The whole text."""

    text: str
    usage: HeardUsage | None = None
    type: Literal["transcript.text.done"] = "transcript.text.done"


def usage_of(heard: TranscriptionOutput) -> HeardUsage:
    """Return what a transcript counts as."""
    return HeardUsage(seconds=math.ceil(heard.duration))


def brief(heard: TranscriptionOutput) -> Transcript:
    """Return a transcript's text as JSON has it."""
    return Transcript(text=heard.text, usage=usage_of(heard))


def verbose(
    heard: TranscriptionOutput, task: Literal["transcribe", "translate"], *, words: bool, segments: bool
) -> VerboseTranscript:
    """Return a transcript with all that is known of its segments, its words, or both."""
    return VerboseTranscript(
        text=heard.text,
        usage=usage_of(heard),
        task=task,
        language=heard.language or "en",
        duration=heard.duration,
        segments=[_segment(number, one) for number, one in enumerate(heard.segments)] if segments else None,
        words=heard.words if words else None,
    )


def _segment(number: int, segment: Segment) -> TranscriptSegment:
    data = segment.text.encode(errors="replace")
    return TranscriptSegment(
        id=number,
        start=round(segment.start, 2),
        end=round(segment.end, 2),
        text=segment.text,
        tokens=segment.token_ids,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=len(data) / len(zlib.compress(data)),
        no_speech_prob=segment.no_speech_prob,
    )


def subtitles(segments: Iterable[Segment], form: Literal["srt", "vtt"]) -> str:
    """Return subtitles in SubRip's or WebVTT's form."""
    lines = ["WEBVTT\n"] if form == "vtt" else []
    for number, segment in enumerate(segments, 1):
        times = f"{_clock(segment.start, form)} --> {_clock(segment.end, form)}"
        text = segment.text.strip().replace("-->", "->")
        head = f"{number}\n" if form == "srt" else ""
        lines.append(f"{head}{times}\n{text}\n")
    return "\n".join(lines) + ("\n" if lines else "")


def _clock(seconds: float, form: Literal["srt", "vtt"]) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    mark = "," if form == "srt" else "."
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
