"""Chunks of prompts in which embeddings that stand next to each other belong together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pageant.protocol.allocation import Admission
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import longest_run, uncut

RUNS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=4
)  # of text, and of an image behind it


def laid_out(runs):
    """Return the places of images, as a list for each, and the length of the prompt: a token of text comes last."""
    images, place = [], 0
    for text, count in runs:
        images.append(list(range(place + text, place + text + count)))
        place += text + count
    return images, place + 1


@given(RUNS, st.integers(1, 12), st.integers(0, 30))
def test_chunks_cover_a_prompt_and_cut_no_image(runs, budget, cached):
    images, length = laid_out(runs)
    places = int32([place for image in images for place in image])
    longest = max(map(len, images), default=0)
    assert longest_run(places) == longest
    prompt = Admission(
        serial=1, token_ids=int32(range(length)), embed_names=None, embed_places=places, embed_whole=True
    )
    assert prompt.fits(budget) == (budget >= longest)
    if not prompt.fits(budget):
        return
    start = min(cached, length - 1)  # a prefix of the cache may end within an image
    while start < length:
        count = prompt.chunk(start, budget)
        end = start + count
        assert 0 < count <= budget and end <= length
        assert not any(image[0] < end <= image[-1] for image in images)
        start = end


def test_a_chunk_without_room_for_an_image_is_empty():
    places = int32([3, 4, 5, 6, 9])
    assert [uncut(places, 3, end) for end in range(3, 9)] == [3, 3, 3, 3, 7, 8]
    assert uncut(places, 0, 5) == 3 and uncut(places, 5, 6) == 5 and uncut(places, 7, 10) == 10
    assert longest_run(np.zeros(0, np.int32)) == 0


def test_prompts_that_may_be_cut_are():
    prompt = Admission(serial=1, token_ids=int32(range(9)), embed_places=int32([2, 3, 4]))
    assert prompt.fits(1) and not prompt.fits(0)
    assert prompt.chunk(0, 3) == 3 and prompt.chunk(6, 9) == 3
