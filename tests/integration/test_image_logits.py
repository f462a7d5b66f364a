"""Logits of prompts with images, however they are cut into steps: transformers is the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pageant import kernels
from pageant.actors.encoder.core import ImageEncoder, digest_of
from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.runners.passes import Passes
from pageant.actors.frontend.images import expand
from pageant.models.checkpoint import Checkpoint
from pageant.models.loading import load_decoder
from pageant.models.vision.processing import decode
from pageant.protocol.allocation import Admission
from pageant.protocol.arrays import bools, int32
from pageant.protocol.embedding import longest_run
from pageant.protocol.encoding import ImageInputs
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan
from tests.vision_models import FAMILIES, SIZES, Seeing, images, png

BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0)


class Played:
    """Prompts with images through the parts of an engine that compute them, planned by hand."""

    def __init__(self, seeing: Seeing) -> None:
        checkpoint = Checkpoint(seeing.path)
        checkpoint.check()
        self.seeing = seeing
        self.encoder = ImageEncoder(seeing.path, "float32", "cpu", 1)
        self.decoder = load_decoder(
            checkpoint, "float32", torch.device("cpu"), kernels=kernels.load("reference", "cpu")
        )
        self.blocks = 200

    def prompt(self, token_ids, pictures):
        """Return the tokens of a prompt, and what images are embedded as."""
        if not pictures:
            return int32(token_ids), None
        encoded = []
        for picture in pictures:
            pixels = decode(png(picture), self.encoder.spec.processing)
            encoded.append(self.encoder.encode(pixels, digest_of(pixels)))
        spec = self.encoder.spec
        inputs = ImageInputs(
            placeholder=self.seeing.placeholder, reserved=(), most=9, rotary=spec.rotary, whole=spec.whole
        )
        return expand(int32(token_ids), encoded, inputs)

    @torch.inference_mode()
    def logits(self, prompts, chunk):
        """Return logits of prompts that are computed together, so many tokens of each at a time."""
        whole = [self.prompt(*one) for one in prompts]
        batch = Batch(len(prompts), 512, BLOCK_SIZE)
        batch.group(len(self.decoder.groups.windows))
        caches = self.decoder.allocate_kv_caches(self.blocks, BLOCK_SIZE)
        drawn = torch.zeros(len(prompts), dtype=torch.int64)
        passes = Passes(
            self.decoder, caches, drawn, max_num_seqs=len(prompts), max_model_len=512, block_size=BLOCK_SIZE
        )
        lengths = [len(token_ids) for token_ids, _ in whole]
        new, first = [], 0
        for row, (token_ids, embeds) in enumerate(whole):
            count = -(-len(token_ids) // BLOCK_SIZE) * len(self.decoder.groups.windows)
            new.append(
                NewSequence(
                    row=row,
                    token_ids=token_ids,
                    num_prompt_tokens=len(token_ids),
                    blocks=int32(np.arange(first, first + count)),
                    params=GREEDY,
                    embedded=None if embeds is None else embeds.uncached(0),
                )
            )
            first += count
        found: list[list[torch.Tensor]] = [[] for _ in prompts]
        starts, number = [0] * len(prompts), 0
        while any(start < length for start, length in zip(starts, lengths, strict=True)):
            rows = [row for row, length in enumerate(lengths) if starts[row] < length]
            counts = [chunk_of(*whole[row], starts[row], chunk) for row in rows]
            number += 1
            plan = StepPlan(
                number=number,
                epoch=1,
                freed_rows=int32(),
                new=tuple(new) if number == 1 else (),
                grown_rows=int32(),
                grown_counts=int32(),
                grown_blocks=int32(),
                rows=int32(rows),
                starts=int32([starts[row] for row in rows]),
                num_tokens=int32(counts),
                draws=bools([False] * len(rows)),
            )
            inputs = batch.apply(plan)
            hidden = passes.run(inputs, embedded=inputs.embedded, rotary=inputs.rotary)
            logits = self.decoder.logits(hidden).clone()
            for row, part, count in zip(rows, logits.split(counts), counts, strict=True):
                found[row].append(part)
                starts[row] += count
        return [torch.cat(parts) for parts in found]


def chunk_of(token_ids, embeds, start, most):
    """Return how many tokens of a prompt a step computes from `start` on, by the rule of schedulers."""
    if embeds is None:
        return min(most, len(token_ids) - start)
    prompt = Admission(serial=1, token_ids=token_ids, embed_places=embeds.places, embed_whole=embeds.whole)
    return prompt.chunk(start, max(most, longest_run(embeds.places)) if embeds.whole else most)


PROMPTS = (
    ([5, 9, 7, 11, 30], 0),
    ([5, "image", 7], 1),
    (["image", 4, 8, "image", 9, 9, 10, 11], 2),
    ([3, "image", "image", 12, 13, "image"], 3),
    ([*range(20, 52), "image", 7, "image", 8], 2),  # behind more tokens than Gemma's window has
)


@pytest.fixture(scope="module", params=FAMILIES)
def played(request, tmp_path_factory):
    return Played(Seeing(request.param, Path(tmp_path_factory.mktemp("seeing"))))


def test_logits_are_transformers_at_every_chunk_size(played):
    pictures = images()
    assert len(pictures) == len(SIZES)
    prompts = [(played.seeing.prompt(tokens), pictures[:count]) for tokens, count in PROMPTS]
    expected = [played.seeing.logits(*one) for one in prompts]
    for chunk in (1, 7, 64):
        found = played.logits(prompts, chunk)
        for one, right in zip(found, expected, strict=True):
            assert one.shape == right.shape and right.std() > 0.3
            assert (one - right).abs().max() < 1e-4, f"in chunks of {chunk}"
