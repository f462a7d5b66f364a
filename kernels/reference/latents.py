"""Products between latents and heads."""

from __future__ import annotations

from torch import Tensor

__all__ = ["multiply_heads"]


def multiply_heads(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """See `Kernels.multiply_heads`."""
    product = (x.transpose(0, 1) @ weight).transpose(0, 1)
    if out is None:
        return product.contiguous()
    out.copy_(product)
    return out
