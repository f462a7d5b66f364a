"""Transcription of a sound of any length, as transformers does it with Whisper, over plain requests: one a window.

A sound that fits into a window needs one request. A longer one is heard window by window: timestamps say where the
last whole piece of text ended, and the next window begins there. So no word is cut in two, and each window is a prompt
of its own, which the scheduler batches with everybody's.

Where several temperatures are given, a window whose text was likely made up is written again at the next one: its
tokens repeat one another, or were unlikely.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.given_audio import PromptWithAudio
from pageant.protocol.arrays import int32
from pageant.protocol.checks import check_integer, check_number
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import AudioInputs, AudioMeasured, AudioPart, SpeechRules
from pageant.protocol.parameters import Parameters
from pageant.protocol.sampling import SamplingParams

__all__ = [
    "Segment",
    "Transcription",
    "TranscriptionOutput",
    "TranscriptionSettings",
    "check_previous",
    "compression_ratio",
]

Task = Literal["transcribe", "translate"]
_PROMPT_MAX = 100_000
_TEMPERATURES_MAX = 16


class TranscriptionSettings(Parameters, frozen=True):
    """Settings of a transcription.

    Attributes:
        language: its code, such as `en`; None is found out, where the model knows several.
        task: `translate` writes English, whatever is said.
        timestamps: times are written for pieces of a sound that fits into a window; of longer ones they always are.
        prompt: a text that comes before, such as names with their spelling.
        temperature: 0 writes what is likeliest. Of several, the first; a window whose text fails a threshold is written
            again at the next, and that of the last one is kept.
        compression_ratio_threshold: what a window's tokens may be compressed by, at most; None allows all.
        logprob_threshold: the least mean log-probability of a window's tokens; None allows all.
        seed: of temperatures above 0.
        max_tokens: the most tokens of a window; None is as many as the model writes.

    Raises:
        BadRequest: a value is out of range.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = False
    prompt: str = ""
    temperature: float | Sequence[float] = 0.0
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    seed: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.temperatures) <= _TEMPERATURES_MAX:
            count = len(self.temperatures)
            raise BadRequest(
                f"temperature has {count} numbers; expected 1 to {_TEMPERATURES_MAX}", "temperature"
            )
        for one in self.temperatures:
            check_number("temperature", one, 0.0, 2.0)
        if self.compression_ratio_threshold is not None:
            check_number("compression_ratio_threshold", self.compression_ratio_threshold, 0.0, 1e6)
        if self.logprob_threshold is not None:
            check_number("logprob_threshold", self.logprob_threshold, -1e6, 0.0)
        if self.task not in ("transcribe", "translate"):
            raise BadRequest(f"task is {self.task!r:.80}; expected transcribe or translate", "task")
        if self.language is not None and not isinstance(self.language, str):
            raise BadRequest(f"language is {self.language!r:.80}; expected a code such as en", "language")
        if not isinstance(self.prompt, str) or len(self.prompt) > _PROMPT_MAX:
            raise BadRequest(f"prompt is no text of at most {_PROMPT_MAX} characters", "prompt")
        if not isinstance(self.timestamps, bool):
            raise BadRequest(f"timestamps is {self.timestamps!r:.80}; expected true or false", "timestamps")
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, 2**63 - 1)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Return all temperatures in order."""
        several = self.temperature
        return tuple(several) if isinstance(several, list | tuple) else (cast("float", several),)

    def accepts(self, token_ids: Sequence[int], avg_logprob: float | None, vocab_size: int) -> bool:
        """Tell whether a window's tokens keep to the thresholds, the mark of the end included.

        avg_logprob: their mean log-probability, where it is known.
        """
        most, least = self.compression_ratio_threshold, self.logprob_threshold
        if most is not None and compression_ratio(token_ids, vocab_size) > most:
            return False
        return least is None or avg_logprob is None or avg_logprob >= least

    def check(self, inputs: AudioInputs) -> None:
        """Refuse what a model cannot do.

        Raises:
            BadRequest: names the parameter.
        """
        if self.language is not None and self.language not in inputs.languages:
            known = ", ".join(inputs.languages) or "none: the model knows one language"
            raise BadRequest(f"language is {self.language!r:.80}; expected one of {known:.600}", "language")
        if self.task == "translate" and "translate" not in inputs.tasks:
            raise BadRequest("task is translate; this model transcribes alone", "task")
        if self.timestamps and inputs.no_timestamps is None:
            raise BadRequest("timestamps are asked for; this model writes none", "timestamps")
        if self.prompt and inputs.previous is None:
            raise BadRequest("prompt is given; this model takes none", "prompt")


def compression_ratio(token_ids: Sequence[int], vocab_size: int) -> float:
    """Return by how much zlib compresses tokens as transformers writes them out: much where they repeat each other."""
    size = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(int(token).to_bytes(size, "little") for token in token_ids)
    return len(data) / len(zlib.compress(data))


def check_previous(token_ids: list[int], inputs: AudioInputs) -> list[int]:
    """Return the tokens of a text that comes before.

    Raises:
        BadRequest: it spells marks of the model's.
    """
    if max(token_ids, default=0) >= inputs.end:
        raise BadRequest("prompt spells a mark of the model's; expected a text", "prompt")
    return token_ids


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


class Transcription:
    """Transcription of one sound: decides which window is heard next, and keeps what comes of it.

    Args:
        audio: the sound.
        measured: its length.
        previous: tokens of the settings' prompt.
        max_model_len: tokens of a window, those that come before included.
        vocab_size: of the model.

    Raises:
        BadRequest: a sound that is longer than a window, for a model that writes no times.
    """

    def __init__(
        self,
        audio: AudioPart,
        measured: AudioMeasured,
        inputs: AudioInputs,
        settings: TranscriptionSettings,
        previous: Sequence[int],
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        settings.check(inputs)
        self.settings, self._inputs = settings, inputs
        self._audio, self._measured = audio, measured
        self._max_model_len, self._vocab_size = max_model_len, vocab_size
        self._is_long = measured.num_frames > inputs.window_frames
        if self._is_long and inputs.no_timestamps is None:
            raise BadRequest(
                f"the sound has {measured.seconds:.1f} s; expected at most "
                f"{inputs.window_frames * inputs.frame_seconds:g}, since the model writes no times",
                "file",
            )
        self._has_times = settings.timestamps or self._is_long
        self._language = settings.language
        self._previous = [inputs.previous, *previous[-self._most_previous :]] if previous else []
        self._frame = 0
        self._num_windows = 0
        self._attempt = 0  # at the window at hand: which of the temperatures it has
        self.segments: list[Segment] = []
        self._is_cut = self.done = False

    @property
    def _most_previous(self) -> int:
        return max(1, self._max_model_len // 2 - 1)

    @property
    def _finds_language(self) -> bool:
        return self._language is None and bool(self._inputs.languages)

    # The next request.

    def prompt(self) -> PromptWithAudio:
        """Return what is asked next: a window, or the language of the first one."""
        audio = msgspec.structs.replace(self._audio, first_frame=self._frame)
        if self._finds_language:
            return PromptWithAudio(int32([self._inputs.start]), audio)
        return PromptWithAudio(self._prompt_ids(), audio, self._rules())

    def params(self) -> SamplingParams:
        """Return the sampling parameters of that request."""
        if self._finds_language:
            languages = tuple(sorted(self._inputs.languages.values()))
            return SamplingParams(
                temperature=0, max_tokens=1, allowed_token_ids=languages, detokenize=False, ignore_eos=True
            )
        left = self._max_model_len - len(self._prompt_ids())
        settings = self.settings
        return SamplingParams(
            temperature=self._temperature,
            seed=settings.seed,
            max_tokens=left if settings.max_tokens is None else min(left, settings.max_tokens),
            detokenize=False,
            logprobs=0,
        )

    @property
    def _temperature(self) -> float:
        return self.settings.temperatures[self._attempt]

    def _prompt_ids(self) -> npt.NDArray[np.int32]:
        inputs = self._inputs
        ids = [*self._previous, inputs.start]
        if self._language is not None:
            ids.append(inputs.languages[self._language])
        if inputs.tasks:
            ids.append(inputs.tasks[self.settings.task])
        if not self._has_times and inputs.no_timestamps is not None:
            ids.append(inputs.no_timestamps)
        return int32(ids)

    def _rules(self) -> SpeechRules:
        inputs = self._inputs
        first = None if inputs.no_timestamps is None else inputs.no_timestamps + 1
        return SpeechRules(
            suppressed=inputs.suppressed,
            first_suppressed=inputs.first_suppressed,
            end=inputs.end,
            first_timestamp=first if self._has_times else None,
            initial_timestamp_most=inputs.initial_timestamp_most if self._has_times else None,
        )

    # Its answer.

    def advance(self, token_ids: Sequence[int], avg_logprob: float | None = None) -> list[Segment]:
        """Take in what was written for the request. Return the segments that it adds.

        A text that fails a threshold adds nothing where another temperature is left: the next request has that.
        """
        if self._is_cut and not token_ids:
            self.done = True
            return []
        if self._finds_language:
            codes = {token: code for code, token in self._inputs.languages.items()}
            self._language = codes[token_ids[0]]
            return []
        tokens = [int(token) for token in token_ids]
        is_last = self._is_cut or self._attempt + 1 == len(self.settings.temperatures)
        if not is_last and not self.settings.accepts(tokens, avg_logprob, self._vocab_size):
            self._attempt += 1
            return []
        if tokens and tokens[-1] == self._inputs.end:
            tokens.pop()
        self._num_windows += 1
        pieces, frames = self._split(tokens, avg_logprob)
        found = [msgspec.structs.replace(one, temperature=self._temperature) for one in pieces]
        self._attempt = 0
        self.segments += found
        self._frame += frames
        at_end = self._frame >= self._measured.num_frames or frames <= 0
        self.done = at_end or not self._has_times or self._is_cut
        return found

    def cut(self) -> None:
        """End with what comes of the request at hand: somebody has aborted it."""
        self._is_cut = True

    def _split(self, tokens: list[int], avg_logprob: float | None) -> tuple[list[Segment], int]:
        """Return the segments of a window, and how many frames of it they cover.

        Pairs of timestamps part them. What comes after the last pair is not finished: the next window begins with it.
        """
        inputs = self._inputs
        first = 2**31 if inputs.no_timestamps is None else inputs.no_timestamps + 1
        offset = self._frame * inputs.frame_seconds
        heard = min(self._measured.num_frames - self._frame, inputs.window_frames)
        is_time = [token >= first for token in tokens]
        cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]

        def at(token: int) -> float:
            return offset + (token - first) * inputs.timestamp_seconds

        if not cuts:
            end = offset + heard * inputs.frame_seconds
            times = [token for token in tokens if token >= first]
            if times and times[-1] != first:
                end = at(times[-1])
            return [Segment(offset, end, tokens, avg_logprob=avg_logprob)] if tokens else [], heard
        single_end = is_time[-2:] == [False, True]
        if single_end:
            cuts.append(len(tokens))
        else:
            cuts[-1] += 1
        found, begin = [], 0
        for cut in cuts:
            piece = tokens[begin:cut]
            last = piece[-1] if single_end or cut != cuts[-1] else piece[-2]
            found.append(Segment(at(piece[0]), at(last), piece, avg_logprob=avg_logprob))
            begin = cut
        if single_end:
            return found, heard
        steps = tokens[begin - 2] - first
        return found, round(steps * inputs.timestamp_seconds / inputs.frame_seconds)

    def texts(self) -> list[list[int]]:
        """Return the tokens of each segment's text, without timestamps."""
        return [self.words(segment) for segment in self.segments]

    def words(self, segment: Segment) -> list[int]:
        """Return the tokens of a segment's text, without timestamps and marks."""
        marks = self._inputs.end
        return [token for token in segment.token_ids if token < marks]

    def output(self, texts: Sequence[str]) -> TranscriptionOutput:
        """Return what was heard, with the texts of the segments in order."""
        segments = [
            msgspec.structs.replace(one, text=text) for one, text in zip(self.segments, texts, strict=True)
        ]
        return TranscriptionOutput(
            text="".join(texts).strip(),
            language=self._language,
            duration=self._measured.seconds,
            segments=segments,
            num_windows=self._num_windows,
        )
