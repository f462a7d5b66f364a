"""Real speech by a real Whisper, where the packages that have them are installed."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
import torch
import transformers
from transformers.models.whisper import tokenization_whisper

import pageant
from pageant.actors.frontend.spoken_words import Word
from tests.speech_models import features_of, token_times
from tests.whisper_tiny import SENTENCES, missing, save, speak

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"{' and '.join(missing())} are not installed")
RATE, FIRST_TIME = 16_000, 50_363


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


def words_of_transformers(folder, model, samples, heard):
    """Return transformers' words of a long sound, segment by segment."""
    ends = token_times(model, transformers.WhisperFeatureExtractor(), samples, return_timestamps=True)
    tokenizer = transformers.WhisperTokenizer(tokenizer_file=str(folder / "tokenizer.json"))
    found, place = [], 0
    for segment in heard.segments:
        assert segment.token_ids[0] >= FIRST_TIME, "a timestamp has the end of the piece before"
        tokens = [place for place, token in enumerate(segment.token_ids) if token < FIRST_TIME - 2]
        ids = [segment.token_ids[one] for one in tokens]
        words, _, indices = tokenization_whisper._combine_tokens_into_words(tokenizer, ids, "english")
        for word, parts in zip(words, indices, strict=True):
            start, end = ends[place + tokens[parts[0]] - 1], ends[place + tokens[parts[-1]]]
            found.append(Word(word.strip(), round(start, 2), round(end, 2)))
        place += len(segment.token_ids)
    return found


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
        (stitched,) = llm.transcribe(long, word_timestamps=True)
    assert stitched.duration == pytest.approx(len(long) / RATE) and stitched.num_windows > 2
    assert stitched.token_ids == written(model, long, return_timestamps=True)
    assert stitched.text.lower().count("lazy dog") >= 2
    assert stitched.words == words_of_transformers(folder, model, long, stitched)
    assert "".join(word.word for word in stitched.words) == stitched.text.replace(" ", "")
    dogs = [word for word in stitched.words if word.word == "dog."]
    sentence, everything = len(heard[0]) / RATE, sum(len(one) / RATE + 0.6 for one in heard)
    for word, begin in zip(dogs, (0, everything), strict=False):
        assert begin + sentence - 1 < word.start < begin + sentence < word.end < begin + sentence + 1
