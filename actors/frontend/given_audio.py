"""Sounds as users bring them: encoded files, arrays of samples, and vLLM's pairs of samples and a rate."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.models.audio.families import RATE
from pageant.models.audio.processing import BYTES_MAX, CHANNELS_MAX, RATE_MAX, complaint
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import PromptEmbeds
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import Alignment, AudioInputs, AudioPart, EncodedAudio, SpeechRules
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import Tokenize

__all__ = ["PromptWithAudio", "attended", "check_audio", "read_audio_file", "read_sound"]

_WAV_FLOAT = 3
_EXPECTED = "expected a file's bytes, an array of samples, or (samples, rate)"


@dataclass(frozen=True, eq=False)
class PromptWithAudio:
    """A checked text, or token ids int32 [tokens], all of which attend to a sound.

    Attributes:
        rules: of what is written; None leaves it to the model.
        alignment: asks when the tokens are said. Then nothing is written.
    """

    prompt: Tokenize | npt.NDArray[np.int32]
    audio: AudioPart
    rules: SpeechRules | None = None
    alignment: Alignment | None = None

    @property
    def pooling(self) -> PoolingParams | None:
        """Return how weights of attention become times; None where a text is written."""
        return None if self.alignment is None else PoolingParams(reads_all=True, alignment=self.alignment)


def read_audio_file(data: bytes, place: str = "file") -> AudioPart:
    """Return the sound of a file.

    Raises:
        BadRequest: it has no bytes, or too many; names the place.
    """
    if not data:
        raise BadRequest(f"{place} has no bytes; expected a sound", place)
    if len(data) > BYTES_MAX:
        raise BadRequest(f"{place} has {len(data)} bytes; at most {BYTES_MAX} are taken", place)
    return AudioPart(data=np.frombuffer(data, np.uint8))


def read_sound(value: Any, place: str = "audio") -> AudioPart:
    """Return a sound as users of the library bring it.

    Args:
        value: a file's bytes; samples as a float array [samples] or [channels, samples], of 16,000 a second; or such
            and their rate.

    Raises:
        BadRequest: none of them, no samples, or some that are no numbers or far above 1; names the place.
    """
    if isinstance(value, AudioPart):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return read_audio_file(bytes(value), place)
    rate: Any = RATE
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], int | float):
        value, rate = value
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 1 <= rate <= RATE_MAX:
        raise BadRequest(f"{place} has the rate {rate!r:.80}; expected 1 to {RATE_MAX} a second", place)
    try:
        samples = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadRequest(f"{place} is a {type(value).__name__}; {_EXPECTED} ({error!s:.80})", place) from None
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2):
        found = f"{samples.dtype} of shape {list(samples.shape)}"
        raise BadRequest(f"{place} is {found}; {_EXPECTED}, of floats between -1 and 1", place)
    if not samples.size:
        raise BadRequest(f"{place} has 0 samples; expected some", place)
    if (wrong := complaint(samples)) is not None:
        raise BadRequest(f"{place} {wrong}", place)
    return _as_file(samples.T if samples.ndim == 2 else samples, int(rate), place)


def _as_file(samples: npt.NDArray[Any], rate: int, place: str) -> AudioPart:
    """Return samples [samples] or [samples, channels] as a WAV of floats, which loses nothing."""
    values = np.ascontiguousarray(samples, dtype="<f4")
    channels = 1 if values.ndim == 1 else values.shape[1]
    if channels > CHANNELS_MAX:
        raise BadRequest(f"{place} has {channels} channels; expected at most {CHANNELS_MAX}", place)
    frame = 4 * channels
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, _WAV_FLOAT, channels, rate, rate * frame, frame, 32)
    body = form + struct.pack("<4sI", b"data", values.nbytes) + values.tobytes()
    return read_audio_file(struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body, place)


def check_audio(given: bool, inputs: AudioInputs | None, params: SamplingParams) -> None:
    """Refuse a sound that a model does not take, or a prompt without one for a model that hears.

    Raises:
        BadRequest: says what the model takes.
    """
    if given and inputs is None:
        raise BadRequest("the prompt has a sound; this model takes texts", "prompt")
    if not given and inputs is not None:
        raise BadRequest(
            "the prompt has no sound; this model writes down what it hears: expected one, as with "
            "/v1/audio/transcriptions or LLM.transcribe",
            "prompt",
        )
    if given and params.truncate_prompt_tokens is not None:
        raise BadRequest(
            "truncate_prompt_tokens is given; expected none with a sound", "truncate_prompt_tokens"
        )


def attended(encoded: EncodedAudio) -> PromptEmbeds:
    """Return what an encoder made as a request brings it."""
    return PromptEmbeds(rows=encoded.rows, names=encoded.name, places=int32([0]), attended=True)
