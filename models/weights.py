"""Which weights a decoder has, and where each tensor of a checkpoint goes among them.

Projections that read the same input are fused: a checkpoint's query, key and value weights are rows of one
tensor here, and so are gate and up. A `Place` says which rows of which tensor. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pageant.models.spec import DecoderSpec

__all__ = ["Place", "Places", "layer_shapes", "model_shapes"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one checkpoint tensor of shape `shape` goes: rows from `row` on of the tensor `name`."""

    name: str
    """A name of `model_shapes`, or, in a layer, of `layer_shapes`."""
    layer: int | None
    row: int
    shape: tuple[int, ...]


Places = Mapping[str, Place]
"""From a checkpoint's tensor names."""


def model_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """The tensors outside the layers. There is no `lm_head` when it is the embedding."""
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (spec.vocab_size, spec.hidden_size),
        "final_norm": (spec.hidden_size,),
    }
    if not spec.tie_word_embeddings:
        shapes["lm_head"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, fused, and only those that this model has."""
    qkv_size = spec.query_size + 2 * spec.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (spec.hidden_size,),
        "qkv_weight": (qkv_size, spec.hidden_size),
        "o_weight": (spec.hidden_size, spec.query_size),
        "mlp_norm": (spec.hidden_size,),
        "gate_up_weight": (2 * spec.intermediate_size, spec.hidden_size),
        "down_weight": (spec.hidden_size, spec.intermediate_size),
    }
    if spec.qkv_bias:
        shapes["qkv_bias"] = (qkv_size,)
    if spec.o_bias:
        shapes["o_bias"] = (spec.hidden_size,)
    if spec.mlp_bias:
        shapes["gate_up_bias"] = (2 * spec.intermediate_size,)
        shapes["down_bias"] = (spec.hidden_size,)
    if spec.qk_norm:
        shapes["query_norm"] = shapes["key_norm"] = (spec.head_dim,)
    return shapes
