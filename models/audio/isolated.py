"""Decoding of sounds in a process of its own, where one that ends the process costs nobody else anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pageant.models.audio.processing import AudioRefused, decode

__all__ = ["OPENER", "open_decoder", "samples_of"]

OPENER = f"{__name__}:open_decoder"
_SAMPLES, _REFUSED = b"s", b"r"


def open_decoder(argument: str) -> Callable[[bytes], bytes]:
    """Return the function from files to answers that `samples_of` reads. The argument is the rate of samples."""
    import soundfile  # now, so that their memory does not count towards a sound's
    import soxr

    rate = int(argument)
    del soundfile, soxr

    def answer(data: bytes) -> bytes:
        try:
            return _SAMPLES + decode(data, rate).tobytes()
        except AudioRefused as error:
            return _REFUSED + str(error).encode(errors="backslashreplace")

    return answer


def samples_of(answer: bytes) -> npt.NDArray[np.float32]:
    """Return the samples of an answer, float32 [samples].

    Raises:
        AudioRefused: the sound was at fault.
    """
    if answer[:1] == _REFUSED:
        raise AudioRefused(answer[1:].decode())
    return np.frombuffer(answer, np.float32, offset=1)
