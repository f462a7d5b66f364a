"""Medusa's heads beside their formula, under all names that their checkpoints have."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pageant.models.errors import CheckpointError
from pageant.models.heads.medusa import MedusaHeads
from tests.models.heads.conftest import VOCAB, WIDTH, save_head

NAMES = {
    "the authors'": ("{head}.{layer}.linear.{kind}", "{head}.2.weight"),
    "the authors', within a model": (
        "medusa_head.{head}.{layer}.linear.{kind}",
        "medusa_head.{head}.2.weight",
    ),
    "converted": ("blocks.{head}.layers.{layer}.{kind}", "lm_heads.{head}.weight"),
}


@pytest.mark.parametrize("own_head", [True, False])
@pytest.mark.parametrize("names", NAMES)
def test_each_head_is_residual_blocks_and_a_head(target, tmp_path, names, own_head):
    torch.manual_seed(2)
    block, last = NAMES[names]
    tensors = {
        block.format(head=head, layer=layer, kind=kind): 0.3 * torch.randn(*shape)
        for head in range(3)
        for layer in range(2)
        for kind, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,)))
    }
    if own_head:
        tensors |= {last.format(head=head): torch.randn(VOCAB, WIDTH) for head in range(3)}
    folder = save_head(tmp_path / "medusa", tensors, medusa_num_heads=3, medusa_num_layers=2)
    heads = MedusaHeads(folder, target, WIDTH)
    assert heads.num_heads == 3
    hidden = torch.randn(5, WIDTH)
    for head in range(3):
        expected = hidden
        for layer in range(2):
            weight, bias = (
                tensors[block.format(head=head, layer=layer, kind=kind)] for kind in ("weight", "bias")
            )
            expected = expected + functional.silu(functional.linear(expected, weight, bias))
        own = (
            functional.linear(expected, tensors[last.format(head=head)])
            if own_head
            else target.logits(expected)
        )
        torch.testing.assert_close(heads.logits(head, hidden), own, atol=1e-5, rtol=1e-5)


def test_heads_of_another_width_are_refused(target, tmp_path):
    tensors = {"0.0.linear.weight": torch.zeros(WIDTH + 1, WIDTH), "0.0.linear.bias": torch.zeros(WIDTH)}
    with pytest.raises(
        CheckpointError, match=r"0.0.linear.weight has shape \[33, 32\]; expected shape \[32, 32\]"
    ):
        MedusaHeads(
            save_head(tmp_path / "medusa", tensors, medusa_num_heads=1, medusa_num_layers=1), target, WIDTH
        )
