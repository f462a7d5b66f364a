"""8-bit weights whose upper halves can be read alone; see `pageant.kernels.quantized`.

The upper four bits of each weight suffice to find out which of many results are large, if the lower four are
random. A result is then within a few standard deviations of what the upper halves give. Memory therefore holds
not q but q + 128 + r. r, from 0 to 15, is a random number that is the same for an input in all rows. Whatever q
is, the lower half of this sum is each of 16 numbers with the same probability, as in subtractive dither
(Roberts: Picture coding using pseudo-random noise, 1962). q is at most 112, which costs most groups of weights
nothing: their scale has the sign that makes the number of the largest size -128.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pageant.kernels.philox import philox4x32

__all__ = ["HALVED_INPUTS_MAX", "HALVED_MOST", "join", "split"]

HALVED_INPUTS_MAX = 1 << 14
"""The most inputs of a weight in halves."""
HALVED_MOST = 112
"""The largest q; the smallest is -128."""
_GROUP = 32


@functools.cache
def _raised() -> Tensor:
    """Return 128 + r of each input, uint8. (csrc/gemm/halves.h has the same r.)"""
    zero = torch.zeros(1, dtype=torch.int64)
    quads = torch.arange(HALVED_INPUTS_MAX // 4)
    words = torch.stack(philox4x32((quads, zero, zero, zero), (zero, zero)), dim=1)
    return (words.flatten() >> 28).to(torch.uint8) + 128


def split(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower halves, uint8 [M, P / 2], of q, int8 [M, P].

    Of 64 inputs, i is in the lower four bits of byte i, and 32 + i in the upper ones.
    """
    value = q.view(torch.uint8) + _raised()[: q.shape[-1]]  # modulo 256, which it does not reach
    return _packed(value >> 4), _packed(value & 15)


def join(upper: Tensor, lower: Tensor) -> Tensor:
    """Return q, int8 [M, P], of its upper and lower halves, uint8 [M, P / 2]."""
    value = _unpacked(upper) << 4 | _unpacked(lower)
    return (value - _raised()[: value.shape[-1]]).view(torch.int8)


def _packed(fours: Tensor) -> Tensor:
    first, second = torch.unflatten(fours, -1, (-1, 2, _GROUP)).unbind(-2)
    return (first | second << 4).flatten(-2)


def _unpacked(halves: Tensor) -> Tensor:
    both = torch.unflatten(halves, -1, (-1, _GROUP))
    return torch.stack((both & 15, both >> 4), dim=-2).flatten(-3)
