"""Real speech by a real Whisper, where the packages that have them are installed."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
import torch
import transformers

import pageant
from tests.speech_models import features_of
from tests.whisper_tiny import SENTENCES, missing, save, speak

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"{' and '.join(missing())} are not installed")
RATE = 16_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save(folder)


def written(model, samples, **given):
    """Return the tokens that transformers writes, greedily."""
    features = features_of(transformers.WhisperFeatureExtractor(), samples)
    with torch.inference_mode():
        found = model.generate(features, do_sample=False, num_beams=1, return_segments=True, **given)
    tokens = [int(token) for segment in found["segments"][0] for token in segment["tokens"]]
    return [token for token in tokens if token != model.generation_config.eos_token_id]


def test_sentences_and_a_long_file_are_heard_as_by_transformers(tiny):
    folder, model = tiny
    spoken = [speak(sentence) for sentence in SENTENCES]
    heard = [soxr.resample(samples, rate, RATE, quality="HQ") for samples, rate in spoken]
    pause = np.zeros(int(0.6 * RATE), np.float32)
    parts = [part for samples in heard for part in (samples, pause)]
    long = np.concatenate(parts * 3)[: 75 * RATE]
    with pageant.LLM(folder, placement="one", progress=False, dtype="float32", num_blocks=200) as llm:
        found = llm.transcribe(spoken)
        assert [one.token_ids for one in found] == [written(model, samples) for samples in heard]
        words = [set(one.text.lower().strip(".").split()) for one in found]
        said = [set(sentence.lower().strip(".").split()) for sentence in SENTENCES]
        shares = [len(one & other) / len(other) for one, other in zip(words, said, strict=True)]
        assert sum(shares) / len(shares) > 0.6, "it is speech that was heard"
        (stitched,) = llm.transcribe(long)
    assert stitched.duration == pytest.approx(len(long) / RATE) and stitched.num_windows > 2
    assert stitched.token_ids == written(model, long, return_timestamps=True)
    assert stitched.text.lower().count("lazy dog") >= 2
