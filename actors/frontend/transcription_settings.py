"""Settings of a transcription, and what decides that a window's text is kept."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Literal, cast

from pageant.protocol.checks import check_integer, check_number
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import AudioInputs
from pageant.protocol.parameters import Parameters

__all__ = ["TranscriptionSettings", "check_previous", "compression_ratio"]

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
        no_speech_threshold: a window is passed over where silence is likelier than this and its text is less likely
            than `logprob_threshold`; None passes none over.
        word_timestamps: times are found for words, too, by weights of attention.
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
    no_speech_threshold: float | None = None
    word_timestamps: bool = False
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
        if self.no_speech_threshold is not None:
            check_number("no_speech_threshold", self.no_speech_threshold, 0.0, 1.0)
        if self.task not in ("transcribe", "translate"):
            raise BadRequest(f"task is {self.task!r:.80}; expected transcribe or translate", "task")
        if self.language is not None and not isinstance(self.language, str):
            raise BadRequest(f"language is {self.language!r:.80}; expected a code such as en", "language")
        if not isinstance(self.prompt, str) or len(self.prompt) > _PROMPT_MAX:
            raise BadRequest(f"prompt is no text of at most {_PROMPT_MAX} characters", "prompt")
        for name in ("timestamps", "word_timestamps"):
            if not isinstance(found := getattr(self, name), bool):
                raise BadRequest(f"{name} is {found!r:.80}; expected true or false", name)
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

    def is_silent(self, no_speech_prob: float | None, avg_logprob: float | None) -> bool:
        """Tell whether a window's text is passed over, since nobody is likely to speak.

        no_speech_prob: the probability of silence; avg_logprob: the mean log-probability of what was written.
        """
        most, least = self.no_speech_threshold, self.logprob_threshold
        if most is None or no_speech_prob is None or no_speech_prob <= most:
            return False
        return least is None or avg_logprob is None or avg_logprob < least

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
        if self.word_timestamps and not inputs.alignment_heads:
            raise BadRequest(
                "word_timestamps are asked for; this model's generation_config.json has no alignment_heads",
                "word_timestamps",
            )
        if self.no_speech_threshold is not None and inputs.no_speech is None:
            raise BadRequest(
                "no_speech_threshold is given; this model has no token of silence", "no_speech_threshold"
            )
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
