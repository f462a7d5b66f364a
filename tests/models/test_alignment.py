"""Places of tokens within sounds, against transformers' own functions."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.whisper import generation_whisper

from pageant.actors.frontend.transcription_settings import TranscriptionSettings
from pageant.models.audio.alignment import token_rows
from pageant.models.audio.families import read_audio
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest
from tests.speech_models import Hearing


def theirs(weights: torch.Tensor, width: int) -> list[int]:
    """Return what `_extract_token_timestamps` makes of weights [heads, tokens, rows], in rows."""
    spread = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    normed = (weights - weights.mean(dim=-2, keepdim=True)) / spread
    matrix = generation_whisper._median_filter(normed[None], width)[0].mean(dim=0)
    texts, times = generation_whisper._dynamic_time_warping(-matrix.double().numpy())
    jumps = np.pad(np.diff(texts), (1, 0), constant_values=1).astype(bool)
    return [int(row) for row in times[jumps]]


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.sampled_from((1, 3, 7))),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_tokens_are_where_transformers_finds_them(heads, tokens, rows, width, seed, ties):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(heads, tokens, rows, generator=generator)
    if ties:
        weights = (weights * 3).round() + 0.25 * torch.arange(tokens)[:, None]
    assert token_rows(list(weights), width).tolist() == theirs(weights, width)


@pytest.mark.parametrize("shape", [(2, 60, 400), (6, 3, 1500)])
def test_long_sounds_are_warped_as_by_transformers(shape):
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    assert token_rows(list(weights), 7).tolist() == theirs(weights, 7)


def test_heads_are_those_of_the_checkpoint_and_others_are_refused(tmp_path):
    hearing = Hearing(tmp_path)
    path = tmp_path / "generation_config.json"
    generation = json.loads(path.read_text())

    def inputs(**changed):
        path.write_text(json.dumps({**generation, **changed}))
        return read_audio(Checkpoint(hearing.path))

    assert inputs().alignment_heads == ((0, 1), (1, 0), (1, 3)) and inputs().filter_width == 7
    bare = inputs(alignment_heads=None)
    assert bare.alignment_heads == ()
    with pytest.raises(BadRequest, match=r"word_timestamps are asked for.*no alignment_heads"):
        TranscriptionSettings(word_timestamps=True).check(bare)
    silent = msgspec.structs.replace(bare, no_timestamps=None)
    with pytest.raises(BadRequest, match="no_speech_threshold is given; this model has no token of silence"):
        TranscriptionSettings(no_speech_threshold=0.6).check(silent)
    for wrong in ([[2, 0]], [[0, 4]], [[0]], [3], "all", [[0, -1]], [[0, True]]):
        with pytest.raises(CheckpointError, match=r"alignment_heads.*a layer below 2, and a head below 4"):
            inputs(alignment_heads=wrong)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "median_filter_width": 4}))
    with pytest.raises(CheckpointError, match=r"median_filter_width.*an odd number"):
        inputs()


@pytest.mark.parametrize(("tokens", "rows"), [(4, 2), (2, 4), (5, 5)])
def test_weights_that_are_no_numbers_give_no_negative_rows(tokens, rows):
    found = token_rows([torch.full((tokens, rows), torch.nan)], 1)
    assert found.min() >= 0
