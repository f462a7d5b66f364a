"""Codes and scales as files in compressed-tensors' format have them. `ready.compressed_tensors` reads them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.models.quantizing.schemes import Scheme
from pageant.models.quantizing.shards import Layout

__all__ = ["pack", "part_layouts"]

_WORD = 32


def part_layouts(module: str, outputs: int, inputs: int, scheme: Scheme) -> list[Layout]:
    """Return the tensors of a quantised module."""
    scales = Layout(f"{module}.weight_scale", "BF16", (outputs, scheme.groups(inputs)))
    if not scheme.is_packed:
        return [Layout(f"{module}.weight", "I8", (outputs, inputs)), scales]
    words = -(-inputs * scheme.bits // _WORD)
    return [
        Layout(f"{module}.weight_packed", "I32", (outputs, words)),
        scales,
        Layout(f"{module}.weight_shape", "I64", (2,)),
    ]


def pack(module: str, codes: Tensor, scales: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Return the tensors of a module by name.

    codes: int8 [outputs, inputs]. scales: float32 [outputs, groups], exact in bfloat16.
    """
    parts = {f"{module}.weight_scale": scales.bfloat16()}
    if not scheme.is_packed:
        return parts | {f"{module}.weight": codes}
    parts[f"{module}.weight_packed"] = _words(codes, scheme)
    parts[f"{module}.weight_shape"] = torch.tensor(codes.shape, dtype=torch.int64)
    return parts


def _words(codes: Tensor, scheme: Scheme) -> Tensor:
    """Return int32 [outputs, words]: codes raised to be above zero, from the lowest bits of a word up."""
    padding = -codes.shape[1] % (_WORD // scheme.bits)
    raised = F.pad((codes.to(torch.int16) - scheme.least).to(torch.uint8), (0, padding))
    if scheme.bits == 4:
        raised = raised[:, ::2] | raised[:, 1::2] << 4
    return raised.contiguous().view(torch.int32)
