"""Every native architecture's forward pass as recorded calls of kernels and of torch, bit for bit."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import AttentionBatch
from tests.models.families import FAMILIES


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


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_recorded_step_has_the_same_bits_whatever_its_tokens(family, name):
    steps_have_the_same_bits(family(name), "float32")


@pytest.mark.parametrize(
    "name", ["llama", "gemma2", "mixtral", "glm4_moe", "qwen3_next", "falcon_h1", "lfm2"]
)
@torch.inference_mode()
def test_a_recorded_step_has_the_same_bits_in_16_bits(family, name):
    steps_have_the_same_bits(family(name), "bfloat16")


def steps_have_the_same_bits(made, dtype):
    """Compare two steps of a shape with what another decoder computes: states are found anew for other caches."""
    decoder = made.load(dtype, "cpu")
    recorded, computed = Step(decoder), Step(made.load(dtype, "cpu"))
    again = decoder.kernels.capture(recorded.run)
    assert torch.equal(again(), computed.run())
    recorded.follow(), computed.follow()
    assert torch.equal(again(), computed.run())
