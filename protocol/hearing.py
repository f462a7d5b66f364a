"""frontend ──EncodeAudio / MeasureAudio──▶ encoder: sounds to the rows that the tokens of a text attend to.

An encoder takes a window of a sound at a time, of 30 s for Whisper. Its rows travel with the request, as those of
images do, so that an encoder may die at any time. Rules for the text travel with it too, to the executor, which has the
logits.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Matrix, UInt8Vector
from pageant.protocol.encoding import NotEncoded
from pageant.protocol.message import Message, Request

__all__ = [
    "Alignment",
    "AudioInputs",
    "AudioMeasured",
    "AudioPart",
    "EncodeAudio",
    "EncodedAudio",
    "MeasureAudio",
    "SpeechRules",
]


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A window of a sound."""

    data: UInt8Vector
    """uint8 [bytes]: the whole file, such as a WAV."""
    first_frame: int = 0
    """Frame that the window begins with; see `AudioInputs`."""


class SpeechRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of the tokens that a text that is heard may have, as the model was trained to write.

    Attributes:
        suppressed: tokens that are never drawn.
        first_suppressed: tokens that are not drawn first.
        end: the token that ends a text.
        first_timestamp: the token of the time 0, behind which those of later times follow, in order; None where times
            are not written. Those that are, come in pairs around pieces of text, and do not go back.
        initial_timestamp_most: steps of time at which the first piece begins at the latest; None sets no bound.
    """

    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()
    end: int = 0
    first_timestamp: int | None = None
    initial_timestamp_most: int | None = None


class Alignment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask when the tokens of a text are said, by the weights with which they attend to a sound.

    Attributes:
        first: position of the first token that is asked about; those before it tell the model what to write.
        num_rows: rows of the encoder that are of the sound itself.
        heads: layers and heads whose weights are read.
        filter_width: rows that each median of weights is taken of, odd.
    """

    first: int
    num_rows: int
    heads: tuple[tuple[int, int], ...]
    filter_width: int


class AudioInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sounds that a model takes, and the tokens by which it is told what to write.

    Attributes:
        window_frames: frames of a window; a sound of more is heard window by window.
        frame_seconds: of a frame.
        timestamp_seconds: of the step from one timestamp to the next.
        start: the token that a text begins with.
        end: the token that it ends with.
        languages: tokens of languages by their codes, such as `en`; none for a model of one language.
        tasks: tokens of `transcribe` and `translate`; none for a model of one language.
        no_timestamps: the token that says that times are not written; None where the model cannot write any.
        previous: the token before a text that came before; None where the model takes none.
        suppressed, first_suppressed, initial_timestamp_most: see `SpeechRules`.
        forced: tokens behind `start` where nobody says a language or a task.
        alignment_heads: layers and heads by whose weights tokens are found in a sound; none where nobody says.
        filter_width: see `Alignment`.
    """

    window_frames: int
    frame_seconds: float
    timestamp_seconds: float
    start: int
    end: int
    languages: dict[str, int] = msgspec.field(default_factory=dict)
    tasks: dict[str, int] = msgspec.field(default_factory=dict)
    no_timestamps: int | None = None
    previous: int | None = None
    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()
    initial_timestamp_most: int | None = None
    forced: tuple[int, ...] = ()
    alignment_heads: tuple[tuple[int, int], ...] = ()
    filter_width: int = 7

    @property
    def no_speech(self) -> int | None:
        """Return the token behind `start` that says that nobody speaks; None where it is not known."""
        return None if self.no_timestamps is None else self.no_timestamps - 1


class EncodedAudio(Message, frozen=True, kw_only=True):
    """A window as its encoder hears it."""

    rows: Float32Matrix
    """float32 [encoder_rows, hidden_size]."""
    name: UInt8Vector
    """uint8 [NAME_BYTES]: what the rows are called; a digest of what they were made from."""


class EncodeAudio(Request[EncodedAudio | NotEncoded], frozen=True, kw_only=True):
    """Encode a window of a sound."""

    audio: AudioPart


class AudioMeasured(Message, frozen=True, kw_only=True):
    """The length of a sound."""

    num_frames: int
    """Those of the sound itself, without what is put behind it to fill a window."""
    seconds: float


class MeasureAudio(Request[AudioMeasured | NotEncoded], frozen=True, kw_only=True):
    """Ask how long a sound is."""

    audio: AudioPart
