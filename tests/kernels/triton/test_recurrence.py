"""Recurrent layers beside transformers' functions, and a whole model with such beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pageant.kernels.base import Kernels, StateRows
from pageant.models import Checkpoint
from pageant.models.loading import load_decoder
from tests.kernels import delta_net_layer, state_space_layer
from tests.kernels.state_steps import BLOCK_SIZE, MARK, NUM_BLOCKS, no_tokens
from tests.models.family_sizes import COMMON
from tests.models.pages import Pages
from tests.models.recurrent_families import RECURRENT

# Key heads or groups, heads, numbers of keys and of values, and tokens of the convolution.
SIZES = [(3, 3, 7, 5, 2), (1, 2, 33, 20, 5)]
LAYERS: dict[str, Any] = {"delta_net": delta_net_layer, "state_space": state_space_layer}
SPANS = (
    [(0, 9), (0, 1), (0, 8)],
    [(9, 10), (1, 4), (8, 9)],
    [(10, 17), (4, 5), (9, 9)],
)


def last(found: Any) -> torch.Tensor:
    """Return what is read of heads' states, of what a layer's step gives for a sequence."""
    return found if isinstance(found, torch.Tensor) else found[1]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_tokens_and_states_are_those_of_transformers(
    triton_kernels: Kernels, device: torch.device, dtype: torch.dtype, kind: str, sizes: tuple[int, ...]
) -> None:
    """Prompts in chunks that end anywhere, then single tokens beside them, and both; states where blocks end."""
    if dtype != torch.float32 and sizes == SIZES[0]:
        sizes = (1, 1, 4, 4, 3)  # one that is quick in the interpreter
    module = LAYERS[kind]
    layer = module.Layer(sizes, dtype, device=device)
    texts = [layer.text(count) for count in (17, 5, 9)]
    for spans in SPANS:
        found = layer.step(triton_kernels, texts, spans)
        for number, (text, (first, end), read) in enumerate(zip(texts, spans, found, strict=True)):
            torch.testing.assert_close(last(read), text.read[first:end], **module.near(dtype))
            if kind == "state_space":
                torch.testing.assert_close(read[0], text.mixed[first:end], **module.near(dtype))
            kept = {end, *(place for place in range(first + 1, end) if place % BLOCK_SIZE == 0)} - {first}
            for place in kept:
                matrices, inputs = layer.state(number, place)
                assert torch.equal(
                    inputs.view(-1, layer.memory.num_channels),
                    F.pad(text.channels[:place], (0, 0, sizes[4] - 1, 0))[place:],
                )
                if kind == "delta_net":
                    torch.testing.assert_close(matrices, text.states[place], **module.near(dtype))
    unused = set(range(NUM_BLOCKS)) - set(layer.tables[:, :3].flatten().tolist())
    assert all(bool(layer.bytes_of(block).eq(MARK).all()) for block in unused)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_state_goes_through_pages_of_any_size_and_chunks_change_no_bit(
    triton_kernels: Kernels, device: torch.device, kind: str
) -> None:
    found = []
    for page_bytes, size in ((None, 11), (8, 1), (56, 7)):
        layer = LAYERS[kind].Layer((1, 1, 6, 5, 4), torch.float16, page_bytes, device=device)
        text = layer.text(11)
        spans = [(first, min(first + size, 11)) for first in range(0, 11, size)]
        read = [last(layer.step(triton_kernels, [text], [span])[0]) for span in spans]
        found.append((torch.cat(read), *layer.state(0, 8), *layer.state(0, 11)))
        assert bool(layer.bytes_of(int(layer.tables[0, 4, 0])).eq(MARK).all()), "a block of nobody"
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("kind", LAYERS)
def test_drafts_leave_states_alone_until_they_are_replayed(
    triton_kernels: Kernels, device: torch.device, kind: str
) -> None:
    """Three drafts after token 10, of which two were right; then a step of which nothing is sure."""
    module = LAYERS[kind]
    layer = module.Layer((1, 1, 16, 8, 4), torch.float32, device=device)
    text, other = layer.text(20), layer.text(10)
    near = module.near(torch.float32)
    layer.step(triton_kernels, [text, other], [(0, 10), (0, 4)])

    def check(spans: list[tuple[int, int]], replayed: list[int], unsure: list[int]) -> None:
        rows = StateRows(np.array([0, 1]), np.array(replayed), np.array(unsure))
        for one, (first, end), read in zip(
            (text, other), spans, layer.step(triton_kernels, [text, other], spans, rows), strict=True
        ):
            torch.testing.assert_close(last(read), one.read[first:end], **near)

    check([(10, 14), (4, 5)], [0, 0], [3, 1])
    kept = layer.state(1, 5)[0].clone()
    check([(11, 15), (4, 6)], [2, 1], [0, 0])
    check([(15, 19), (6, 8)], [0, 0], [4, 0])
    check([(15, 20), (8, 9)], [4, 0], [0, 0])
    assert not torch.equal(kept, layer.state(1, 9)[0])


def test_a_step_without_tokens_reads_nothing(triton_kernels: Kernels, device: torch.device) -> None:
    layer = delta_net_layer.Layer((1, 2, 16, 8, 4), torch.float32, device=device)
    nothing, heads = torch.empty(0, layer.num_channels, device=device), torch.empty(0, 2, device=device)
    found = triton_kernels.gated_delta_net(nothing, layer.conv, heads, heads, layer.memory, no_tokens())
    assert found.shape == (0, 2, 8)


def test_empty_sequences_and_tokens_of_none_write_nothing(
    triton_kernels: Kernels, device: torch.device
) -> None:
    """What pads the steps of a captured graph."""
    layer = state_space_layer.Layer((1, 2, 16, 8, 4), torch.float32, device=device)
    texts = [layer.text(12) for _ in range(3)]
    found = layer.step(triton_kernels, texts, [(0, 0), (0, 12), (0, 0)])
    torch.testing.assert_close(last(found[1]), texts[1].read, **state_space_layer.near(torch.float32))
    for number in (0, 2):
        blocks = layer.tables[:, number].flatten().tolist()
        assert all(bool(layer.bytes_of(block).eq(MARK).all()) for block in blocks)


def test_a_whole_model_gives_the_logits_of_transformers(
    triton_kernels: Kernels, device: torch.device, tmp_path: Path
) -> None:
    if device.type == "cuda":
        pytest.skip("tests/gpu has larger ones")
    model_class, config_class, sizes = RECURRENT["qwen3_5"]
    torch.manual_seed(0)
    model = model_class(
        config_class(
            **(
                COMMON
                | sizes
                | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
            )
        )
    ).eval()
    model.save_pretrained(tmp_path)
    prompt = torch.randint(3, 60, (6,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    run = Pages(load_decoder(Checkpoint(tmp_path), "float32", device, kernels=triton_kernels))
    chunks = (prompt[:3], prompt[3:4], prompt[4:])
    logits = torch.cat([run.step({"a": chunk, "b": chunk[:1]})["a"] for chunk in chunks])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
