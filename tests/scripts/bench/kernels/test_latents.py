"""The comparison of latents with grouped heads, in small."""

import torch

from pageant.scripts.bench.kernels.latents import GROUPS, LATENT, ROTARY, decode_pairs


def test_both_read_as_much_and_take_time():
    assert all(2 * heads * dim == LATENT + ROTARY for heads, dim in GROUPS)
    pairs = list(decode_pairs(1, context=40, dtype=torch.float32))
    assert len(pairs) == 2 * len(GROUPS)
    assert all(pair.first_us > 0 and pair.second_us > 0 for pair in pairs)
