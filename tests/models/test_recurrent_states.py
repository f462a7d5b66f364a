"""Memory of recurrent states: pages of blocks, what is refused, and steps whose tokens may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, StateRows
from pageant.models.kv_cache import KVLayout
from pageant.models.layer_groups import LayerGroups
from pageant.models.recurrent_spec import DeltaNetSpec
from pageant.models.recurrent_states import RecurrentStates
from pageant.models.spec import AttentionSpec, DecoderSpec
from pageant.protocol.errors import ConfigurationError

TOKENS = torch.randint(6, 331, (40,), generator=torch.Generator().manual_seed(3)).tolist()
BLOCK_SIZE = 4


def test_qwen3_next_80b_needs_blocks_of_256_tokens(family: Callable[[str], Any]) -> None:
    small = family("qwen3_next").load().spec
    sizes = {"num_key_heads": 16, "num_value_heads": 32, "key_dim": 128, "value_dim": 128, "kernel": 4}
    delta_net, attention = (
        DeltaNetSpec(**sizes),
        AttentionSpec(num_heads=16, num_kv_heads=2, head_dim=256, scale=1),
    )
    kinds = [replace(small.layers[0], recurrent=delta_net)] * 3 + [small.layers[3]]
    spec: DecoderSpec = replace(small, attention=attention, layers=tuple(kinds * 12))
    states = RecurrentStates(spec, torch.bfloat16)
    assert states.bytes_beside == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    groups, layout = LayerGroups.one((None,) * 12), KVLayout.of(attention, 12, torch.bfloat16)
    behind = states.groups_behind(groups, layout, 256)
    assert behind.windows == (None, *(2,) * 14) and behind.num_states == 14
    with pytest.raises(ConfigurationError, match=r"36 recurrent layers, 73\.7 MiB, .*expected at least 256"):
        states.groups_behind(groups, layout, 16)


class Tables:
    """One sequence in blocks of several groups, whose states lie in pages of keys and values."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        decoder.groups = decoder.states.groups_behind(decoder.groups, decoder.kv_layout, BLOCK_SIZE)
        self.groups = len(decoder.groups.windows)
        places = -(-len(TOKENS) // BLOCK_SIZE)
        self.caches = decoder.allocate_kv_caches(self.groups * places, BLOCK_SIZE)
        assert len(self.caches) == decoder.groups.layers_per_block, "states have no memory beside"
        order = torch.randperm(self.groups * places, generator=torch.Generator().manual_seed(1))
        self.tables = order.view(self.groups, 1, places).int()

    @torch.inference_mode()
    def step(self, start: int, tokens: list[int], replayed: int = 0, unsure: int = 0) -> Tensor:
        """Return the logits of tokens from `start` on, [tokens, vocab_size]."""
        positions = torch.arange(start, start + len(tokens))
        blocks = self.tables[:, 0, positions // BLOCK_SIZE].long()
        batch = AttentionBatch.of_groups(
            self.tables,
            blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
            context_lengths=torch.tensor([start + len(tokens)], dtype=torch.int32),
            positions=positions,
            max_query_length=len(tokens),
            max_context_length=start + len(tokens),
            states=StateRows(np.array([5]), np.array([replayed]), np.array([unsure])),
        )
        hidden = self.decoder.forward(torch.tensor(tokens), positions, batch, self.caches)
        logits: Tensor = self.decoder.logits(hidden)
        return logits


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "lfm2", "falcon_h1"])
def test_tokens_that_may_be_wrong_are_taken_in_only_when_they_are_replayed(
    family: Callable[[str], Any], name: str
) -> None:
    """Any number of four drafts is right, at every place of a block; the others are followed by other tokens."""
    expected = Tables(family(name).load()).step(0, TOKENS)
    run, known, before = Tables(family(name).load()), 3, 0
    run.step(0, TOKENS[:3])
    for right in (0, 4, 1, 3, 2, 0, 0, 4, 4, 1):
        drafts = TOKENS[known + 1 : known + 1 + right] + [330, 329, 328, 327][: 4 - right]
        logits = run.step(known, [TOKENS[known], *drafts], before, unsure=len(drafts))
        torch.testing.assert_close(
            logits[: right + 1], expected[known : known + right + 1], atol=1e-4, rtol=0
        )
        known, before = known + right + 1, right
    assert known == 32
    void = run.step(known, [17], replayed=before, unsure=1)
    assert (void[0] - expected[known]).abs().max() > 0.01
    again = run.step(known, TOKENS[known:])
    torch.testing.assert_close(again, expected[known:], atol=1e-4, rtol=0)
