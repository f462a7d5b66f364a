"""Transcription of a sound of any length, as transformers does it with Whisper, over plain requests.

A sound that fits into a window needs one request. A longer one is heard window by window: timestamps say where the
last whole piece of text ended, and the next window begins there. So no word is cut in two, and each window is a prompt
of its own, which the scheduler batches with everybody's.

Requests beside those that write: the language of the first window, where nobody says it; the probability of silence
before each window, and the times of its tokens after it, where they are asked for.

Where several temperatures are given, a window whose text was likely made up is written again at the next one: its
tokens repeat one another, or were unlikely.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.given_audio import PromptWithAudio
from pageant.actors.frontend.pooling import NOTHING_SAMPLED
from pageant.actors.frontend.transcription_settings import TranscriptionSettings
from pageant.actors.frontend.transcripts import Segment, TranscriptionOutput, pieces, told
from pageant.protocol.arrays import Float32Matrix, int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import Alignment, AudioInputs, AudioMeasured, AudioPart, SpeechRules
from pageant.protocol.sampling import SamplingParams

__all__ = ["Heard", "Transcription"]


class _Asks(enum.Enum):
    """Requests of a transcription."""

    LANGUAGE = enum.auto()
    SILENCE = enum.auto()
    TEXT = enum.auto()
    TIMES = enum.auto()


class Heard(NamedTuple):
    """Results of a request."""

    token_ids: Sequence[int] = ()
    avg_logprob: float | None = None
    """Mean log-probability of the tokens."""
    listed_logprob: float | None = None
    """Log-probability of the token that the request lists."""
    rows: Float32Matrix | None = None
    """float32 [1, tokens]: the encoder's rows at which tokens are said."""


class _Window(NamedTuple):
    """A window whose text is kept."""

    tokens: list[int]
    """Without the mark of the end."""
    avg_logprob: float | None


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
        self._no_speech_prob: float | None = None  # in the window at hand
        self._written: tuple[_Window, npt.NDArray[np.int32]] | None = (
            None  # with the tokens whose times are asked
        )
        self.segments: list[Segment] = []
        self._is_cut = self.done = False

    @property
    def _most_previous(self) -> int:
        return max(1, self._max_model_len // 2 - 1)

    @property
    def _asks(self) -> _Asks:
        """Return what the next request is for."""
        if self._language is None and self._inputs.languages:
            return _Asks.LANGUAGE
        if self._written is not None:
            return _Asks.TIMES
        if self.settings.no_speech_threshold is not None and self._no_speech_prob is None:
            return _Asks.SILENCE
        return _Asks.TEXT

    # The next request.

    def prompt(self) -> PromptWithAudio:
        """Return the prompt of the next request."""
        audio, inputs = msgspec.structs.replace(self._audio, first_frame=self._frame), self._inputs
        match self._asks:
            case _Asks.LANGUAGE:
                return PromptWithAudio(int32([inputs.start]), audio)
            case _Asks.SILENCE:
                return PromptWithAudio(int32([*self._previous, inputs.start]), audio)
            case _Asks.TEXT:
                return PromptWithAudio(self._prompt_ids(), audio, self._rules())
            case _Asks.TIMES:
                assert self._written is not None, "that is what asks for times"
                return PromptWithAudio(self._written[1], audio, alignment=self._alignment())

    def params(self) -> SamplingParams:
        """Return the sampling parameters of the next request."""
        match self._asks:
            case _Asks.LANGUAGE:
                languages = tuple(sorted(self._inputs.languages.values()))
                return msgspec.structs.replace(NOTHING_SAMPLED, allowed_token_ids=languages, ignore_eos=True)
            case _Asks.SILENCE:
                assert self._inputs.no_speech is not None, "the settings were checked"
                return msgspec.structs.replace(
                    NOTHING_SAMPLED, logprobs=1, logprob_token_ids=(self._inputs.no_speech,)
                )
            case _Asks.TIMES:
                return NOTHING_SAMPLED
            case _Asks.TEXT:
                return self._params_of_text()

    def _params_of_text(self) -> SamplingParams:
        left, settings = self._max_model_len - len(self._prompt_ids()), self.settings
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

    @property
    def _frames(self) -> int:
        """Return how many frames of the window at hand are of the sound."""
        return min(self._measured.num_frames - self._frame, self._inputs.window_frames)

    def _alignment(self) -> Alignment:
        inputs = self._inputs
        return Alignment(
            first=len(self._prompt_ids()),
            num_rows=max(1, self._frames // 2),  # a row is made of two frames
            heads=inputs.alignment_heads,
            filter_width=inputs.filter_width,
        )

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

    def advance(self, heard: Heard) -> list[Segment]:
        """Take in the results of the request. Return the segments that they add.

        A text that fails a threshold adds nothing where another temperature is left: the next request has that.
        """
        asked = self._asks
        if asked is _Asks.TIMES:
            return self._take_times(heard)
        if self._is_cut and not heard.token_ids:
            self.done = True
            return []
        match asked:
            case _Asks.LANGUAGE:
                codes = {token: code for code, token in self._inputs.languages.items()}
                self._language = codes[heard.token_ids[0]]
            case _Asks.SILENCE:
                assert heard.listed_logprob is not None, "it was asked for"
                self._no_speech_prob = math.exp(heard.listed_logprob)
            case _Asks.TEXT:
                return self._take_text([int(token) for token in heard.token_ids], heard.avg_logprob)
        return []

    def _take_text(self, tokens: list[int], avg_logprob: float | None) -> list[Segment]:
        """Decide on the text of a window: to pass it over, to write it again, to ask for its times, or to keep it."""
        settings = self.settings
        if settings.is_silent(self._no_speech_prob, avg_logprob):
            return self._keep([], self._frames)
        is_last = self._is_cut or self._attempt + 1 == len(settings.temperatures)
        if not is_last and not settings.accepts(tokens, avg_logprob, self._vocab_size):
            self._attempt += 1
            return []
        # The last token is read by nobody: it has the time of the one before.
        read = int32([*self._prompt_ids(), *tokens[:-1]])
        has_times = settings.word_timestamps and len(tokens) > 1 and not self._is_cut
        if tokens and tokens[-1] == self._inputs.end:
            tokens.pop()
        window = _Window(tokens, avg_logprob)
        if has_times:
            self._written = window, read
            return []
        times = [(0.0, 0.0)] * len(tokens) if settings.word_timestamps else []
        return self._keep(*self._split(window, times))

    def _take_times(self, heard: Heard) -> list[Segment]:
        """Keep the text of a window with the times of its tokens; without, where their request was aborted."""
        assert self._written is not None, "that is what asks for times"
        window, self._written = self._written[0], None
        times: list[tuple[float, float]] = []
        if heard.rows is not None:
            step, offset = self._inputs.timestamp_seconds, self._frame * self._inputs.frame_seconds
            ends = [offset + row * step for row in heard.rows[0].tolist()]
            ends.append(ends[-1])
            times = list(zip([offset, *ends], ends, strict=False))[: len(window.tokens)]
        return self._keep(*self._split(window, times))

    def _keep(self, found: list[Segment], frames: int) -> list[Segment]:
        """Go on behind so many frames of the window at hand, with its segments."""
        kept = [
            msgspec.structs.replace(one, temperature=self._temperature, no_speech_prob=self._no_speech_prob)
            for one in found
        ]
        self._num_windows += 1
        self._attempt, self._no_speech_prob = 0, None
        self.segments += kept
        self._frame += frames
        at_end = self._frame >= self._measured.num_frames or frames <= 0
        self.done = at_end or not self._has_times or self._is_cut
        return kept

    def cut(self) -> None:
        """End with what comes of the request at hand: somebody has aborted it."""
        self._is_cut = True

    def _split(self, window: _Window, times: list[tuple[float, float]]) -> tuple[list[Segment], int]:
        """Return the segments of a window, and how many frames of it they cover.

        times: when each token begins and ends; empty where nobody asks.

        Pairs of timestamps part them. What comes after the last pair is not finished: the next window begins with it.
        """
        inputs, (tokens, avg_logprob) = self._inputs, window
        first = 2**31 if inputs.no_timestamps is None else inputs.no_timestamps + 1
        offset = self._frame * inputs.frame_seconds
        heard = self._frames
        is_time = [token >= first for token in tokens]
        cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]

        def at(token: int) -> float:
            return offset + (token - first) * inputs.timestamp_seconds

        if not cuts:
            end = offset + heard * inputs.frame_seconds
            said = [token for token in tokens if token >= first]
            if said and said[-1] != first:
                end = at(said[-1])
            whole = Segment(offset, end, tokens, avg_logprob=avg_logprob, token_times=times)
            return [whole] if tokens else [], heard
        single_end = is_time[-2:] == [False, True]
        if single_end:
            cuts.append(len(tokens))
        else:
            cuts[-1] += 1
        found, begin = [], 0
        for cut in cuts:
            piece = tokens[begin:cut]
            last = piece[-1] if single_end or cut != cuts[-1] else piece[-2]
            own = times[begin:cut]
            found.append(Segment(at(piece[0]), at(last), piece, avg_logprob=avg_logprob, token_times=own))
            begin = cut
        if single_end:
            return found, heard
        steps = tokens[begin - 2] - first
        return found, round(steps * inputs.timestamp_seconds / inputs.frame_seconds)

    # Texts.

    def pieces(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Return the tokens whose texts `told` takes; see `transcripts.pieces`."""
        return pieces(segments, self._inputs.end)

    def told(self, segments: Sequence[Segment], texts: Sequence[str]) -> list[Segment]:
        """Return segments with their texts and words; see `transcripts.told`."""
        return told(segments, texts, self._inputs.end, self._language)

    def output(self, segments: Sequence[Segment]) -> TranscriptionOutput:
        """Return what was heard: all segments, with their texts."""
        return TranscriptionOutput(
            text="".join(one.text for one in segments).strip(),
            language=self._language,
            duration=self._measured.seconds,
            segments=list(segments),
            num_windows=self._num_windows,
        )
