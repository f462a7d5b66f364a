"""Prompts with images through whole engines: transformers is the oracle, whatever happens to a request on its way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pageant
from pageant.actors.client.images import IMAGES_MOST, image_inputs
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.runtime.topology import Topology
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.encoding import GetEncoderStatistics
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.protocol.roles import Feature
from tests.kept_encoder import keep
from tests.vision_models import IMAGE, Seeing, images, png

ENGINE = {
    "skip_tokenizer_init": True,
    "placement": "one",
    "progress": False,
    "threads": 1,
    "dtype": "float32",
    "block_size": 8,
}
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)
BRIEF = pageant.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


def prompt(token_ids, pictures):
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": list(pictures)}}


def statistics(llm):
    return llm._session.ask("encoder/0", GetEncoderStatistics())


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return Seeing("llava", Path(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def llm(llava):
    """An engine of few blocks, so that long prompts give way, and of small steps, so that images are cut."""
    settings = {"num_blocks": 14, "max_num_batched_tokens": 13, "max_num_seqs": 4}
    with pageant.LLM(llava.path, **settings, **ENGINE) as llm:
        yield llm


def requests(seeing):
    pictures = images()
    return [
        (seeing.prompt([5, 9, 7, 11, 30]), []),
        (seeing.prompt([5, "image", 7]), pictures[:1]),
        (seeing.prompt(["image", 4, "image", 9, 9]), pictures[1:]),
        (seeing.prompt([3, "image", 8, "image", 12, "image"]), pictures),
    ]


def test_greedy_tokens_are_transformers(llm, llava):
    before = llm.scheduler_statistics().counters["preemptions"]
    given = [*requests(llava), *requests(llava)]
    outputs = llm.generate([prompt(*one) if one[1] else one[0] for one in given], GREEDY)
    expected = [llava.greedy(*one, 32) for one in requests(llava)]
    assert [output.outputs[0].token_ids for output in outputs] == [*expected, *expected]
    assert llm.scheduler_statistics().counters["preemptions"] > before, "requests are meant to give way"
    assert [output.prompt_token_ids.count(IMAGE) for output in outputs[:4]] == [0, 16, 32, 48]


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_families_that_need_more_of_an_engine_generate_as_transformers(family, tmp_path):
    """Qwen3-VL's images have positions of their own and are added to later layers; Gemma 3's are computed whole."""
    seeing = Seeing(family, tmp_path)
    with pageant.LLM(seeing.path, num_blocks=200, max_num_batched_tokens=7, max_num_seqs=4, **ENGINE) as llm:
        given = requests(seeing)
        outputs = llm.generate([prompt(*one) if one[1] else one[0] for one in given], GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == [
            seeing.greedy(*one, 32) for one in given
        ]
        (again,) = llm.generate(prompt(*given[3]), GREEDY)
        assert again.outputs[0].token_ids == outputs[3].outputs[0].token_ids
        assert again.num_cached_tokens == len(again.prompt_token_ids) - 1


def one_pixel_apart():
    """Two images of the size that the tower takes, so that nothing is lost on the way."""
    pixels = np.random.default_rng(4).integers(0, 255, (56, 56, 3), dtype=np.uint8)
    other = pixels.copy()
    other[-1, -1, 2] ^= 1
    return Image.fromarray(pixels), Image.fromarray(other)


def test_equal_pixels_are_encoded_once_and_shared_and_others_never_are(llava):
    first, second = one_pixel_apart()
    with pageant.LLM(llava.path, num_blocks=200, **ENGINE) as llm:

        def cached(token_ids, pictures):
            (output,) = llm.generate(prompt(token_ids, pictures), BRIEF)
            assert output.outputs[0].token_ids == llava.greedy(token_ids, pictures, 4)
            return output.num_cached_tokens

        text = list(range(3, 24))  # 21 tokens: two blocks, and five of a third
        with_image = [*text, IMAGE, 30, 31]  # 39 tokens
        (alone,) = llm.generate(text, BRIEF)
        assert alone.num_cached_tokens == 0
        assert cached(with_image, [first]) == 21, "the text before an image is shared with one that has none"
        assert statistics(llm).encoded == 1
        assert cached(with_image, [second]) == 21, "nothing from the image on is shared"
        assert cached(with_image, [first]) == cached(with_image, [second]) == 38
        found = statistics(llm)
        assert (found.encoded, found.cached, found.decoded) == (2, 2, 2)
        # A file of the same pixels in another format is decoded, and encoded no more.
        assert cached(with_image, [np.asarray(first)]) == 38
        bitmap = first.tobytes("raw", "RGB")
        assert bitmap and statistics(llm).encoded == 2
        # The same image at another place, and behind another text, is encoded no more either, and shares nothing.
        assert cached([9, IMAGE, 30, 31], [first]) == 0
        assert statistics(llm).encoded == 2 and statistics(llm).cache_bytes > 0


def test_the_cache_keeps_to_its_budget_and_forty_images_wait_their_turn(llava):
    pictures = [Image.fromarray(np.full((9, 9, 3), 6 * shade, np.uint8)) for shade in range(40)]
    with pageant.LLM(llava.path, num_blocks=400, image_cache_memory=20_000, **ENGINE) as llm:
        outputs = llm.generate([prompt([5, IMAGE, 6], [one]) for one in pictures], BRIEF)
        assert len(outputs) == 40
        found = statistics(llm)
        assert (
            found.encoded == 40 and found.evicted >= 35 and found.cache_bytes <= 20_000 and found.waiting == 0
        )
        assert outputs[7].outputs[0].token_ids == llava.greedy([5, IMAGE, 6], [pictures[7]], 4)


async def test_nothing_is_lost_when_the_encoder_dies(llava):
    """The encoder has a process of its own, so that images and rows cross between processes."""
    given = requests(llava)
    keep(llava.path, [png(picture) for picture in images()])
    expected = [llava.greedy(*one, 32) for one in given]
    settings = {key: value for key, value in ENGINE.items() if key not in ("progress", "placement")}
    own = {"nodes": {"front": {}, "seeing": {"process": True}}}
    own["actors"] = {"encoder": {"node": "seeing", "class": "tests.kept_encoder:KeptEncoder"}}
    async with pageant.Engine(llava.path, num_blocks=100, max_num_seqs=2, **own, **settings) as engine:

        async def served(one):
            output = await engine.complete(prompt(*one) if one[1] else one[0], GREEDY)
            return output.outputs[0].token_ids

        pids = {node.node: node.pid for node in await engine.statistics()}
        os.kill(pids["seeing"], signal.SIGSTOP)  # so that it has images in hand when it dies
        asked = [asyncio.create_task(served(one)) for one in given]
        assert await served(given[0]) == expected[0], "texts do without it"
        os.kill(pids["seeing"], signal.SIGKILL)
        assert await asyncio.gather(*asked) == expected
        assert {node.node: node.pid for node in await engine.statistics()}["seeing"] != pids["seeing"]


def test_drafts_and_samples_change_nothing(llava):
    given = requests(llava)[2]
    expected = llava.greedy(*given, 32)
    with pageant.LLM(
        llava.path, num_blocks=200, speculation={"method": "ngram", "tokens": 3}, **ENGINE
    ) as llm:
        (output,) = llm.generate(prompt(*given), GREEDY)
        assert output.outputs[0].token_ids == expected
        several = pageant.SamplingParams(
            n=3, temperature=0.9, seed=5, max_tokens=6, ignore_eos=True, detokenize=False
        )
        (drawn,) = llm.generate(prompt(*given), several)
        (again,) = llm.generate(prompt(*given), several)
        tokens = [one.token_ids for one in drawn.outputs]
        assert tokens == [one.token_ids for one in again.outputs] and len({*map(tuple, tokens)}) > 1


REFUSED = {
    "more images than placeholders": ([5, IMAGE], 2, "1 placeholder tokens of images, and 2 images"),
    "no placeholder": ([5, 6], 1, "0 placeholder tokens of images, and 1 images"),
    "a placeholder and no image": ([5, IMAGE], 0, "1 placeholder tokens of images, and 0 images"),
    "too many": (
        [IMAGE] * (IMAGES_MOST + 1),
        IMAGES_MOST + 1,
        f"at most {IMAGES_MOST} are taken in one prompt",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_and_placeholders_must_agree(llm, name):
    token_ids, count, message = REFUSED[name]
    given = prompt(token_ids, images()[:1] * count) if count else token_ids
    with pytest.raises(BadRequest, match=message):
        llm.generate(given, BRIEF)


def test_other_bad_input_is_refused_and_disturbs_nobody(llm, llava):
    picture = images()[0]
    cut = pageant.SamplingParams(max_tokens=4, truncate_prompt_tokens=3, detokenize=False)
    with pytest.raises(BadRequest, match="truncate_prompt_tokens is given; expected none with images"):
        llm.generate(prompt([5, IMAGE], [picture]), cut)
    for value, message in (
        (b"", "has no bytes"),
        (b"GIF89a but no more", "no image that is known here"),
        ("file:///etc/passwd", "expected a data: URL"),
        ("https://example.com/cat.png", "expected a data: URL"),
        (np.zeros((4, 4)), "expected uint8"),
        (object(), "expected an image of Pillow's"),
    ):
        with pytest.raises(BadRequest, match=message):
            llm.generate(prompt([5, IMAGE], [value]), BRIEF)
    with pytest.raises(BadRequest, match="a video; this model takes texts and images alone"):
        llm.generate({"prompt_token_ids": [5], "multi_modal_data": {"video": [picture]}}, BRIEF)
    with pytest.raises(BadRequest, match="expected image and video, or audio alone"):
        llm.generate({"prompt_token_ids": [5], "multi_modal_data": {"tree": picture}}, BRIEF)
    (output,) = llm.generate(prompt([5, IMAGE], [picture]), BRIEF)
    assert output.outputs[0].token_ids == llava.greedy([5, IMAGE], [picture], 4)


def test_a_model_of_texts_takes_no_images(checkpoint):
    with pageant.LLM(checkpoint.path, num_blocks=32, placement="one", progress=False, threads=1) as llm:
        with pytest.raises(BadRequest, match="this model takes texts alone"):
            llm.generate(prompt([5, IMAGE], images()[:1]), BRIEF)
        with pytest.raises(BadRequest, match="this model takes texts alone"):
            llm.chat([{"role": "user", "content": [{"type": "image", "image": images()[0]}]}], BRIEF)


def test_without_pillow_a_model_says_what_to_install_or_to_leave_out(llava, monkeypatch):
    monkeypatch.setattr("pageant.actors.client.images.find_spec", lambda name: None)
    with pytest.raises(
        TopologyError,
        match=r"Pillow is not installed; expected pip install 'pageant\[vision\]', or .*image: 0",
    ):
        pageant.LLM(llava.path, **ENGINE)
    with pageant.LLM(llava.path, limit_mm_per_prompt={"image": 0}, num_blocks=32, **ENGINE) as llm:
        assert len(llm.generate([5, 9, 7], BRIEF)[0].outputs[0].token_ids) == 4


def test_what_is_not_there_yet_is_refused_by_name(llava, tmp_path):
    with pytest.raises(TopologyError, match=r"tensor_parallel.*expected 1 with images"):
        pageant.LLM(llava.path, tensor_parallel=2, **ENGINE)
    with pytest.raises(TopologyError, match=r"pipeline_parallel.*expected 1 with images"):
        pageant.LLM(llava.path, pipeline_parallel=2, **ENGINE)
    for method in DEVICE_METHODS:
        settings = {"speculation": {"method": method, "model": str(llava.path)}}
        with pytest.raises(
            TopologyError, match=rf"speculation\.method.*'{method}'; expected ngram with images"
        ):
            image_inputs(Topology(model=str(llava.path), settings=settings), Checkpoint(llava.path))
    assert Feature.IMAGES not in SimulatedExecutor.features
    gemma = Seeing("gemma3", tmp_path)
    with pytest.raises(
        TopologyError, match=r"max_num_batched_tokens.*expected at least 7: .* 4 tokens, beside 3"
    ):
        pageant.LLM(gemma.path, max_num_batched_tokens=6, max_num_seqs=4, **ENGINE)
    with pytest.raises(TopologyError, match=r"limit_mm_per_prompt\.video.*the model takes no videos"):
        pageant.LLM(llava.path, limit_mm_per_prompt={"video": 1}, **ENGINE)
    with pageant.LLM(llava.path, limit_mm_per_prompt={"image": 0}, num_blocks=32, **ENGINE) as llm:
        (output,) = llm.generate([5, 9, 7], BRIEF)
        assert output.outputs[0].token_ids == llava.greedy([5, 9, 7], [], 4)
        with pytest.raises(BadRequest, match="this model takes texts alone"):
            llm.generate(prompt([5, IMAGE], images()[:1]), BRIEF)
