"""Log-probabilities, ranks and top tokens beside the reference."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import Kernels


@pytest.mark.parametrize(
    ("rows", "vocab_size", "k"), [(0, 9, 2), (3, 1, 1), (4, 700, 5), (2, 257, 0), (2, 90, 90)]
)
@pytest.mark.parametrize("kind", ["plain", "ties", "forbidden"])
def test_log_probabilities_and_ranks(
    triton_kernels: Kernels,
    reference: Kernels,
    device: torch.device,
    rows: int,
    vocab_size: int,
    k: int,
    kind: str,
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(rows, vocab_size + 3, generator=generator)[:, :vocab_size] * 3
    if kind == "ties":
        logits = logits.round()
    if kind == "forbidden":
        logits[:, 3:] = float("-inf")
    logits = logits.to(device)
    tokens = torch.randint(vocab_size, (rows,), generator=generator).to(device)
    found = triton_kernels.top_logprobs(logits, tokens, k)
    expected = reference.top_logprobs(logits, tokens, k)
    assert torch.equal(found.top_tokens, expected.top_tokens)
    assert torch.equal(found.ranks, expected.ranks)
    torch.testing.assert_close(found.chosen, expected.chosen, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.top, expected.top, atol=1e-5, rtol=1e-5)
