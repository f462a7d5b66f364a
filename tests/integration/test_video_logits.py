"""Logits of prompts with videos, however they are cut into steps: transformers is the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pageant.actors.encoder.core import digest_of, digest_of_video
from pageant.actors.frontend.images import expand
from pageant.models.vision.processing import decode
from pageant.models.vision.video_decoding import decode_video
from pageant.protocol.arrays import int32
from pageant.protocol.encoding import ImageInputs, VideoInputs
from tests.integration.test_image_logits import Played
from tests.video_models import FAMILIES, Watching, clip, encoded, pictures
from tests.vision_models import BEGIN, END, IMAGE, VIDEO, png


def mark(text):
    """Return tokens of a text that tells a time, in place of a tokenizer's."""
    return [20 + int(character) for character in text if character.isdigit()]


class PlayedVideos(Played):
    """Prompts with images and videos through the parts of an engine that compute them."""

    def frames(self, data):
        return decode_video(data, self.encoder.video.processing)

    def prompt(self, token_ids, media):
        shown, videos = media
        if not shown and not videos:
            return int32(token_ids), None
        encoded = []
        for picture in shown:
            pixels = decode(png(picture), self.encoder.spec.processing)
            encoded.append(self.encoder.encode(pixels, digest_of(pixels)))
        encoded += [self.encoder.encode_video(one, digest_of_video(one)) for one in videos]
        spec = self.encoder.video
        video = VideoInputs(placeholder=VIDEO, most=9, begin=spec.begin, end=spec.end)
        inputs = ImageInputs(placeholder=IMAGE, reserved=(), most=9, rotary=True, video=video)
        marks = {text: int32(mark(text)) for one in encoded for text in one.marks}
        return expand(int32(token_ids), encoded, inputs, marks)


@pytest.fixture(scope="module", params=FAMILIES)
def played(request, tmp_path_factory):
    return PlayedVideos(Watching(request.param, Path(tmp_path_factory.mktemp("watching"))))


PROMPTS = (
    ([5, 9, 7, 11, 30], 0, 0),
    ([5, "video", 7, 8], 0, 1),
    (["image", 4, "video", 9, 9, "image", 10], 2, 1),
    ([3, "video", "video", 12, 13, 14], 0, 2),
)


def test_logits_are_transformers_at_every_chunk_size(played):
    """One video has an odd number of frames, and the other is long: its positions in time are its largest."""
    videos = [
        played.frames(encoded(clip(25), rate=5)),
        played.frames(encoded(clip(40, (64, 80), seed=3), rate=4)),
    ]
    assert len(videos[0].pixels) == 10
    assert len(videos[1].pixels) == 20
    prompts, expected = [], []
    for tokens, seen, watched in PROMPTS:
        token_ids = played.seeing.watched(tokens)
        prompts.append((token_ids, (pictures()[:seen], videos[:watched])))
        given = played.seeing.given(token_ids, *prompts[-1][1], marks=mark)
        expected.append(played.seeing.logits_of(given))
    for chunk in (1, 7, 64):
        found = played.logits(prompts, chunk)
        for one, right in zip(found, expected, strict=True):
            assert one.shape == right.shape and right.std() > 0.3
            assert (one - right).abs().max() < 1e-4, f"in chunks of {chunk}"


def test_odd_frames_and_bare_placeholders_are_expanded(played):
    """A template's tokens around a video give way to those around each step of time; others stay."""
    frames = played.frames(encoded(clip(11, (64, 64)), rate=2))
    frames = frames._replace(pixels=frames.pixels[:5], seconds=frames.seconds[:5])
    for tokens in ([5, BEGIN, VIDEO, END, 6], [5, VIDEO, 6]):
        token_ids, embeds = played.prompt(tokens, ([], [frames]))
        assert token_ids[0] == 5 and token_ids[-1] == 6
        grid = played.encoder.video.grid(frames)
        assert grid[0] == 3 and len(embeds.rows) == len(embeds.places) == np.prod(grid)
        assert (token_ids[embeds.places] == VIDEO).all() and (token_ids == VIDEO).sum() == np.prod(grid)
        is_marked = played.seeing.name == "qwen3_vl"
        assert (token_ids == BEGIN).sum() == (3 if is_marked else tokens.count(BEGIN))
        assert embeds.rotary.shape == (3, len(token_ids))
