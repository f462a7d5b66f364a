"""Decoding of sounds: soxr and transformers are the oracle for sound ones; others are refused in words."""

import io

import numpy as np
import pytest
import soundfile
import soxr
from transformers import WhisperFeatureExtractor

from pageant.models.audio.isolated import open_decoder, samples_of
from pageant.models.audio.processing import AMPLITUDE_MAX, BYTES_MAX, AudioRefused, decode

RATE = 16_000
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 8000).astype(np.float32)


def written(samples, rate=RATE, kind="WAV", subtype="FLOAT"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000])
def test_other_rates_are_resampled(rate):
    found = decode(written(NOISE, rate), RATE)
    assert (found == soxr.resample(NOISE, rate, RATE, quality="HQ")).all()
    assert abs(len(found) - len(NOISE) * RATE / rate) <= 1 and found.dtype == np.float32


def test_channels_are_heard_as_their_mean():
    left, right = NOISE, NOISE[::-1]
    assert np.allclose(decode(written(np.stack([left, right], axis=1)), RATE), (left + right) / 2)
    silent = np.stack([left, -left], axis=1)
    assert not decode(written(silent), RATE).any()


def test_the_loudest_samples_that_are_taken_have_features():
    loud = np.tile(np.float32([AMPLITUDE_MAX, -AMPLITUDE_MAX]), RATE // 2)
    features = WhisperFeatureExtractor()(decode(written(loud), RATE), sampling_rate=RATE)["input_features"]
    assert np.isfinite(features).all()


def floats(*values):
    return np.float32(values)


REFUSED = {
    "nothing": (b"", "no sound that is known here"),
    "a text": (b"RIFF and no more", "no sound that is known here"),
    "a page": (b"<html></html>", "no sound that is known here"),
    "0 s": (written(floats()), "0 samples; expected some"),
    "0 s in stereo": (written(np.zeros((0, 2), np.float32)), "0 samples; expected some"),
    "less than a sample": (written(floats(0.1), 48_000), "1 samples; expected as many as make one at 16000"),
    "NaN": (written(floats(0.1, np.nan)), "no numbers"),
    "NaN in one of two channels": (written(floats([0.1, np.nan], [0, 0])), "no numbers"),
    "infinite": (written(floats(0.1, -np.inf)), "no numbers"),
    "both infinite": (written(floats([np.inf, -np.inf], [0, 0])), "no numbers"),
    "doubles beyond floats": (written(np.array([1e300]), subtype="DOUBLE"), "no numbers"),
    "as loud as floats can be": (written(floats(3e38, -3e38)), r"samples up to 3e\+38; expected floats"),
    "loud in 8 kHz": (written(floats(3e38, -3e38), 8000), r"samples up to 3e\+38"),
    "too many channels": (written(np.zeros((9, 33), np.float32)), "33 channels of 16000 .* at most 32"),
    "a damaged FLAC": (written(NOISE, kind="FLAC", subtype="PCM_16")[:9000], "no sound that is known here"),
    "too long": (written(np.zeros(1801, np.int16), 1, subtype="PCM_16"), "longer than 1800 s"),
    "too many bytes": (bytes(BYTES_MAX + 1), f"{BYTES_MAX + 1} bytes; at most {BYTES_MAX}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_sounds_are_refused_in_words(name):
    data, message = REFUSED[name]
    with pytest.raises(AudioRefused, match=message):
        decode(data, RATE)
    with pytest.raises(AudioRefused, match=message):
        samples_of(open_decoder(str(RATE))(data))
