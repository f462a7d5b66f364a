"""Choice of the weights that are quantised, and of their bits. Knows no torch.

Every matrix of the layers is, and the embedding and the head, which in a small model are a quarter of what a token
reads. With int4, these two have 5 bits. So the demo model's perplexity on Python's documentation rises by 3.5 %. With 4
bits it would rise by 6.4 %; with 8 by 2.8 %, and a token of a small model would read a sixth more. Routers and
gates of shared experts are a thousandth of a model, and decide for all of it: they stay as they are, and so do learned
positions, norms and biases. So does what makes keys and values of latents, which is multiplied from both sides.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["OUTER", "QUANTIZATIONS", "Quantization", "is_quantisable", "quantized_bits", "takes_order"]

Quantization = Literal["int8", "int4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "int4")

OUTER = frozenset({"embedding.weight", "lm_head.weight"})
"""The weights outside of the layers, which `head_quantization` is about."""
_OUTER = frozenset(name.removesuffix(".weight") for name in OUTER)
_INNER = frozenset({"qkv", "query_latent", "query", "latent", "o", "gate_up", "up", "down"})
_RECURRENT = frozenset({"delta_qkvz", "delta_o", "conv_in", "conv_o", "mamba_in", "mamba_o"})
_TO_ENCODER = frozenset({"encoder_query", "encoder_kv", "encoder_o"})
_SHARED = frozenset({"shared_gate_up", "shared_up", "shared_down"})
_EXPERTS = frozenset({"expert_gate_up", "expert_up", "expert_down"})


def is_quantisable(name: str) -> bool:
    """Return whether a tensor of `weights` may be kept in fewer bits than the model's dtype has."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and module in _OUTER | _INNER | _RECURRENT | _TO_ENCODER | _SHARED | _EXPERTS


def takes_order(name: str) -> bool:
    """Return whether a tensor of `weights` is multiplied where its inputs can be sorted (`projection`)."""
    return name.removesuffix(".weight") in _INNER | _RECURRENT | _SHARED


def quantized_bits(
    name: str, quantization: Quantization | None, head_quantization: Quantization | None = None
) -> Literal[8, 5, 4] | None:
    """Bits of the weights of a tensor of `weights`; None is one that is not quantised.

    head_quantization: of the embedding and the head, where it is not None.
    """
    if name in OUTER:
        quantization = head_quantization or quantization
    if quantization is None or not is_quantisable(name):
        return None
    if quantization == "int8":
        return 8
    return 5 if name in OUTER else 4
