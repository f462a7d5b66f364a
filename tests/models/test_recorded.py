"""Every native architecture's forward pass as recorded kernel calls, bit for bit; or it is refused."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import AttentionBatch
from pageant.kernels.cpu.recording import NotRecordable

FAMILIES = [
    "llama",
    "llama_biased",
    "mistral_window",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "phi3",
    "smollm3",
]
OUTSIDE = ["gemma2", "olmo2", "granite", "gpt2", "gpt_neox", "qwen2_moe"]
"""Those that scale or add something in between by torch."""


class Step:
    """A chunk of four tokens beside a decode, then other lengths of the same shape, in the same tensors."""

    def __init__(self, decoder):
        self.caches = decoder.allocate_kv_caches(12, 4)
        self.decoder = decoder
        self.token_ids = torch.tensor([4, 9, 30, 2, 8])
        self.positions = torch.tensor([0, 1, 2, 3, 0])
        self.slots = torch.tensor([8, 9, 10, 11, 40])
        self.starts, self.lengths = (
            torch.tensor(values, dtype=torch.int32) for values in ([0, 4, 5], [4, 1])
        )
        self.tables = torch.tensor([[2, 5, 0], [10, 7, 0]], dtype=torch.int32)
        self.batch = AttentionBatch(
            query_starts=self.starts,
            context_lengths=self.lengths,
            block_tables=self.tables,
            slots=self.slots,
            positions=self.positions,
            max_query_length=4,
            max_context_length=9,
        )

    def follow(self):
        """One token of the first sequence, four of the second."""
        self.token_ids.copy_(torch.tensor([11, 6, 3, 300, 77]))
        self.positions.copy_(torch.tensor([4, 1, 2, 3, 4]))
        self.slots.copy_(torch.tensor([20, 41, 42, 43, 28]))
        self.starts.copy_(torch.tensor([0, 1, 5]))
        self.lengths.copy_(torch.tensor([5, 5]))

    def run(self):
        return self.decoder.forward(self.token_ids, self.positions, self.batch, self.caches)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_recorded_step_has_the_same_bits_whatever_its_tokens(family, name, dtype):
    decoder = family(name).load(dtype, "cpu")
    recorded, computed = Step(decoder), Step(decoder)
    again = decoder.kernels.capture(recorded.run)
    assert torch.equal(again(), computed.run())
    recorded.follow(), computed.follow()
    assert torch.equal(again(), computed.run())


@pytest.mark.parametrize("name", OUTSIDE)
@torch.inference_mode()
def test_a_step_that_torch_computes_in_part_is_refused(family, name):
    decoder = family(name).load("float32", "cpu")
    step = Step(decoder)
    with pytest.raises(NotRecordable):
        decoder.kernels.capture(step.run)
    assert torch.equal(step.run(), Step(decoder).run())
