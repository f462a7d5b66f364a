"""Embeddings of which several ranks have parts: each adds the rows that it has, and zeros for the others."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import empty_quantized
from pageant.kernels.reference import ReferenceKernels
from tests.kernels.test_tiled import in_tiles

ROWS, COLUMNS, RANKS = 48, 64, 3


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(
            (form, dtype)
            for form in ("plain", "int8")
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        ),
        ("tiled", torch.bfloat16),
    ],
)
def test_parts_of_all_ranks_add_up_to_the_rows(every_level: Kernels, form: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(ROWS * RANKS, COLUMNS, generator=generator).to(dtype)
    token_ids = torch.randint(0, ROWS * RANKS, (37,), generator=generator)
    token_ids[:4] = torch.tensor([0, ROWS - 1, ROWS, ROWS * RANKS - 1])
    parts, expected = [], []
    for rank in range(RANKS):
        share = weight[rank * ROWS : (rank + 1) * ROWS]
        given = share
        if form == "int8":
            given = empty_quantized((ROWS, COLUMNS), 8, "cpu")
            every_level.quantize(share, given)
        elif form == "tiled":
            given = in_tiles(share)
        parts.append(every_level.embed_share(token_ids, given, rank * ROWS, dtype))
        expected.append(ReferenceKernels().embed(torch.arange(ROWS), given, dtype))
    assert all(part.dtype == torch.float32 and part.shape == (37, COLUMNS) for part in parts)
    assert torch.equal(sum(parts), torch.cat(expected)[token_ids].float())
