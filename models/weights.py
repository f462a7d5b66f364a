"""Weights of a decoder, and where each tensor of a checkpoint goes among them.

Projections that read the same input are fused: a checkpoint's query, key and value weights are rows of one
tensor here, and so are gate and up; the experts of a layer are stacked. A `Place` says which part of which
tensor. Tensors are named "module.weight" and "module.bias". Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec, MoESpec

__all__ = [
    "Part",
    "Place",
    "Places",
    "Shapes",
    "Weights",
    "head_name",
    "is_float32",
    "layer_parts",
    "layer_shapes",
    "model_shapes",
]

Shapes = dict[str, tuple[int, ...]]
Weights = Mapping[str, Any]
"""Tensors by name; a `kernels.quantized.QuantizedWeight` where `quantization` says so, and a
`kernels.tiled.TiledWeight` where the kernels like that better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of one checkpoint tensor of shape `shape`: rows from `row` on of the tensor `name`."""

    name: str
    """A name of `model_shapes`, or, in a layer, of `layer_shapes`."""
    layer: int | None
    shape: tuple[int, ...]
    row: int = 0
    expert: int | None = None
    """Which of the stacked experts the rows belong to."""
    transposed: bool = False
    """The checkpoint has [in, out], and the tensor [out, in]."""
    interleaved_heads: int | None = None
    """The checkpoint's rows are each head's query, key and value in turn, for so many heads."""
    paired_heads: int | None = None
    """Each of so many heads has its rows in pairs: the first of its one half, the first of its other, and so on. Gates
    and ups that are saved in turn are one such head."""
    plus: float = 0.0
    """What is added to the checkpoint's values."""

    @property
    def outputs(self) -> int:
        """Return the rows of the checkpoint's tensor as the decoder has it, [out, in] or [out]."""
        return self.shape[-1] if self.transposed else self.shape[0]

    @property
    def inputs(self) -> int:
        """Return the columns of the checkpoint's matrix as the decoder has it, [out, in]."""
        return self.shape[0] if self.transposed else self.shape[-1]


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a fused module, which a checkpoint has as a module of its own."""

    module: str
    row: int
    rows: int
    interleaved_heads: int | None = None
    heads: int | None = None
    """Heads that are turned by their positions, where these rows are such."""
    in_pairs: bool = False
    """Whether the checkpoint has the rows of the part's two halves in turn."""


Places = Mapping[str, Place]
"""From a checkpoint's tensor names."""


def model_shapes(spec: DecoderSpec) -> Shapes:
    """The tensors outside the layers. There is no `lm_head` when it is the embedding, or where none is.

    A stage of a pipeline has those of its end alone. Where embedding and head are one, the first and the last have it.
    """
    shapes = _at_the_beginning(spec) if spec.begins else {}
    return shapes | _at_the_end(spec) if spec.ends else shapes


def _at_the_beginning(spec: DecoderSpec) -> Shapes:
    shapes: Shapes = {"embedding.weight": (spec.vocab_size, spec.hidden_size)}
    if spec.learned_positions:
        rows = spec.num_position_rows or spec.max_model_len
        shapes["position_embedding.weight"] = (rows, spec.hidden_size)
    if spec.num_token_types:
        shapes["token_type_embedding.weight"] = (spec.num_token_types, spec.hidden_size)
    if spec.embedding_norm:
        shapes |= _norm(spec, "embedding_norm", spec.hidden_size)
    return shapes


def _at_the_end(spec: DecoderSpec) -> Shapes:
    shapes: Shapes = {}
    if spec.has_head:
        shapes[head_name(spec)] = (spec.vocab_size, spec.hidden_size)
    return shapes if spec.arrangement == "sum_norm" else shapes | _norm(spec, "final_norm", spec.hidden_size)


def head_name(spec: DecoderSpec) -> str:
    """Return the name of the tensor that logits are the product with: the embedding's where they are tied."""
    return "embedding.weight" if spec.tie_word_embeddings else "lm_head.weight"


def layer_shapes(spec: DecoderSpec, layer: LayerSpec) -> Shapes:
    """The tensors of one layer, fused, and only those that this model has."""
    shapes = _attention(spec.attention, spec.hidden_size)
    for name, size in _norm_sizes(spec).items():
        if layer.attention_norm or name != "attention_norm":
            shapes |= _norm(spec, name, size)
    if isinstance(layer.mlp, MoESpec):
        return shapes | _moe(layer.mlp, spec.hidden_size)
    return shapes | _mlp(layer.mlp, spec.hidden_size)


def layer_parts(spec: DecoderSpec, layer: LayerSpec) -> dict[str, Part]:
    """The parts of a layer's fused modules, by the names that `names` has for them."""
    query, kv = spec.attention.query_size, spec.attention.kv_size
    parts = {
        "query": Part("qkv", 0, query, heads=spec.attention.num_heads),
        "key": Part("qkv", query, kv, heads=spec.attention.num_kv_heads),
        "value": Part("qkv", query + kv, kv),
        "qkv_by_head": Part("qkv", 0, query + 2 * kv, spec.attention.num_heads),
    }
    mlp = layer.mlp
    if isinstance(mlp, MoESpec):
        parts |= _gate_and_up("expert_", mlp.size)
        if mlp.shared_size is not None:
            parts |= _gate_and_up("shared_", mlp.shared_size)
    elif mlp.gated:
        parts |= _gate_and_up("", mlp.size)
    return parts


def is_float32(spec: DecoderSpec, name: str) -> bool:
    """Tell whether a tensor is kept in float32 whatever the model's dtype."""
    return name in ("sinks.weight", "router_correction.weight") or (
        spec.norm.kind == "wide_rms" and "norm." in name
    )


def _norm(spec: DecoderSpec, name: str, size: int) -> Shapes:
    weight: Shapes = {f"{name}.weight": (size,)}
    has_bias = spec.norm.kind == "layer" and spec.norm.bias
    return weight | {f"{name}.bias": (size,)} if has_bias else weight


def _norm_sizes(spec: DecoderSpec) -> dict[str, int]:
    """The norms of a layer, by name."""
    sizes: dict[str, int] = {}
    if spec.arrangement != "post_norm":
        sizes |= {"attention_norm": spec.hidden_size, "mlp_norm": spec.hidden_size}
    if spec.arrangement in ("post_norm", "sandwich_norm"):
        sizes |= {"post_attention_norm": spec.hidden_size, "post_mlp_norm": spec.hidden_size}
    attention = spec.attention
    if attention.qk_norm == "head":
        sizes |= {"query_norm": attention.head_dim, "key_norm": attention.head_dim}
    elif attention.qk_norm == "projection":
        sizes |= {"query_norm": attention.query_size, "key_norm": attention.kv_size}
    return sizes


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if bias else weight


def _attention(spec: AttentionSpec, hidden_size: int) -> Shapes:
    qkv_size = spec.query_size + 2 * spec.kv_size
    shapes = _linear("qkv", qkv_size, hidden_size, spec.qkv_bias)
    shapes |= _linear("o", hidden_size, spec.query_size, spec.o_bias)
    return shapes | {"sinks.weight": (spec.num_heads,)} if spec.sinks else shapes


def _mlp(spec: MLPSpec, hidden_size: int, prefix: str = "") -> Shapes:
    first, rows = ("gate_up", 2 * spec.size) if spec.gated else ("up", spec.size)
    return _linear(f"{prefix}{first}", rows, hidden_size, spec.bias) | _linear(
        f"{prefix}down", hidden_size, spec.size, spec.bias
    )


def _moe(spec: MoESpec, hidden_size: int) -> Shapes:
    experts = spec.num_experts if spec.experts_here is None else spec.experts_here
    shapes: Shapes = {
        "router.weight": (spec.num_experts, hidden_size),
        "expert_gate_up.weight": (experts, 2 * spec.size, hidden_size),
        "expert_down.weight": (experts, hidden_size, spec.size),
    }
    if spec.bias:
        shapes |= {
            "router.bias": (spec.num_experts,),
            "expert_gate_up.bias": (spec.num_experts, 2 * spec.size),
            "expert_down.bias": (spec.num_experts, hidden_size),
        }
    if spec.scores == "sigmoid":
        shapes["router_correction.weight"] = (spec.num_experts,)
    if spec.shared_size is None:
        return shapes
    shapes |= _mlp(MLPSpec(size=spec.shared_size), hidden_size, prefix="shared_")
    return shapes | {"shared_switch.weight": (1, hidden_size)} if spec.shared_switch else shapes


def _gate_and_up(prefix: str, size: int) -> dict[str, Part]:
    module = f"{prefix}gate_up"
    return {
        f"{prefix}gate": Part(module, 0, size),
        f"{prefix}up": Part(module, size, size),
        f"{prefix}gate_and_up": Part(module, 0, 2 * size, in_pairs=True),
    }
