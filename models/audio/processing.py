"""Files of sounds to samples, by soundfile and soxr. Knows no torch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BYTES_MAX", "SECONDS_MAX", "AudioRefused", "complaint", "decode"]

BYTES_MAX = 25 << 20
"""Of a file, as with OpenAI."""
SECONDS_MAX = 1800
RATE_MAX = 768_000
CHANNELS_MAX = 32
AMPLITUDE_MAX = 2.0**31
"""Of a sample: far above 1, and as much as whole numbers of 32 bits have. The features of 1e20 are no numbers."""
FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "AU", "CAF")
EXPECTED = "expected a WAV, FLAC, OGG, MP3 or AIFF file"

Samples = npt.NDArray[np.float32]


class AudioRefused(ValueError):
    """A sound that no model can hear. The message says what was found and what was expected."""


def decode(data: bytes, rate: int) -> Samples:
    """Return a file's samples in one channel, the mean of its own: float32 [samples], so many a second.

    Memory is bounded by `SECONDS_MAX`.

    Raises:
        AudioRefused: no sound, a damaged, empty or too long one, or samples that are no numbers or far above 1.
    """
    import soundfile

    if len(data) > BYTES_MAX:
        raise AudioRefused(f"the file has {len(data)} bytes; at most {BYTES_MAX} are taken")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            found = _read(file)
            own = int(file.samplerate)
    except (soundfile.LibsndfileError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, AudioRefused):
            raise
        raise AudioRefused(f"the data is no sound that is known here ({error!s:.200}); {EXPECTED}") from None
    return _resampled(found, own, rate)


def _read(file: object) -> Samples:
    """Return an open file's samples, of whatever rate, in one channel."""
    import soundfile

    assert isinstance(file, soundfile.SoundFile), "it is one"
    if file.format not in FORMATS:
        raise AudioRefused(f"the file is {file.format}; {EXPECTED}")
    if not 1 <= file.channels <= CHANNELS_MAX or not 1 <= file.samplerate <= RATE_MAX:
        raise AudioRefused(
            f"the file has {file.channels} channels of {file.samplerate} samples a second; expected at most "
            f"{CHANNELS_MAX} of {RATE_MAX}"
        )
    most = SECONDS_MAX * file.samplerate
    pieces, count = [], 0
    while len(block := file.read(1 << 20, dtype="float32", always_2d=True)):
        count += len(block)
        if count > most:
            raise AudioRefused(f"the sound is longer than {SECONDS_MAX} s; at most that is taken")
        if (wrong := complaint(block)) is not None:
            raise AudioRefused(f"the sound {wrong}")
        pieces.append(block.mean(axis=1, dtype=np.float32) if block.shape[1] > 1 else block[:, 0].copy())
    if not pieces:
        raise AudioRefused("the sound has 0 samples; expected some")
    return np.concatenate(pieces)


def complaint(samples: npt.NDArray[np.floating[Any]]) -> str | None:
    """Return what is wrong with float samples [samples, channels]; None where nothing is."""
    if not np.isfinite(samples).all():
        return "has samples that are no numbers (NaN or infinite); expected none"
    most = float(np.abs(samples).max(initial=0.0))
    if most > AMPLITUDE_MAX:
        return f"has samples up to {most:g}; expected floats between -1 and 1"
    return None


def _resampled(samples: Samples, own: int, rate: int) -> Samples:
    if own == rate:
        return samples
    import soxr

    found: Samples = np.asarray(soxr.resample(samples, own, rate, quality="HQ"), dtype=np.float32)
    if not len(found):
        raise AudioRefused(
            f"the sound has {len(samples)} samples; expected as many as make one at {rate} a second"
        )
    return found
