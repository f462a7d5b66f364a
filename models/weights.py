"""Weights of a decoder, and where each tensor of a checkpoint goes among them.

Projections that read the same input are fused: a checkpoint's query, key and value weights are rows of one
tensor here, and so are gate and up; the experts of a layer are stacked. A `Place` says which part of which
tensor. Tensors are named "module.weight" and "module.bias". Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pageant.models.recurrent_spec import DeltaNetSpec, MambaSpec, RecurrentSpec
from pageant.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LatentSpec,
    LayerSpec,
    MLPSpec,
    MoESpec,
)

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
    paired_from: int = 0
    """The first row of each such head that is in pairs. Those before it are in order."""
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
    paired_heads: int | None = None
    """Heads whose rows the checkpoint has in pairs; see `Place`."""
    paired_from: int = 0


Places = Mapping[str, Place]
"""From a checkpoint's tensor names."""


def model_shapes(spec: DecoderSpec) -> Shapes:
    """The tensors outside the layers. There is no `lm_head` when it is the embedding, or where none is.

    A stage of a pipeline has those of its end alone. Where embedding and head are one, the first and the last have it.
    """
    shapes = _at_the_beginning(spec) if spec.begins else {}
    if spec.joins:
        size = spec.hidden_size
        shapes |= _norm(spec, "token_norm", size) | _norm(spec, "hidden_norm", size)
        shapes["join.weight"] = (size, 2 * size)
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
    shapes = _attention(spec.attention, spec.hidden_size) if layer.attends else {}
    if layer.recurrent is not None:
        shapes |= _recurrent(layer.recurrent, spec.hidden_size)
    for name, size in _norm_sizes(spec, layer).items():
        if layer.attention_norm or name != "attention_norm":
            shapes |= _norm(spec, name, size)
    if spec.encoder_rows is not None:
        shapes |= _encoder_attention(spec)
    if layer.mlp is None:
        return shapes
    if isinstance(layer.mlp, MoESpec):
        return shapes | _moe(layer.mlp, spec.hidden_size)
    return shapes | _mlp(layer.mlp, spec.hidden_size)


def layer_parts(spec: DecoderSpec, layer: LayerSpec) -> dict[str, Part]:
    """The parts of a layer's fused modules, by the names that `names` has for them."""
    mlp = layer.mlp
    parts = _attention_parts(spec.attention) if layer.attends else {}
    if isinstance(layer.recurrent, DeltaNetSpec):
        parts |= _delta_net_parts(layer.recurrent)
    if spec.encoder_rows is not None:
        parts |= {
            "encoder_key": Part("encoder_kv", 0, spec.attention.kv_size),
            "encoder_value": Part("encoder_kv", spec.attention.kv_size, spec.attention.kv_size),
        }
    if mlp is None or not mlp.gated:
        return parts
    if isinstance(mlp, MoESpec):
        parts |= _gate_and_up("expert_", mlp.size)
        if mlp.shared_size is not None:
            parts |= _gate_and_up("shared_", mlp.shared_size)
    else:
        parts |= _gate_and_up("", mlp.size)
    return parts


def _attention_parts(spec: AttentionSpec) -> dict[str, Part]:
    if (latent := spec.latent) is not None:
        heads, shared = (spec.num_heads, 1) if latent.in_pairs else (None, None)
        return {
            "query_from_stream" if latent.query_rank is None else "query_from_latent": Part(
                "query", 0, spec.query_size, paired_heads=heads, paired_from=latent.plain
            ),
            "latent": Part("latent", 0, spec.head_dim, paired_heads=shared, paired_from=latent.rank),
        }
    query, kv = spec.query_size * (1 + spec.gated), spec.kv_size
    return {
        "query": Part("qkv", 0, query, heads=spec.num_heads),
        "key": Part("qkv", query, kv, heads=spec.num_kv_heads),
        "value": Part("qkv", query + kv, kv),
        "qkv_by_head": Part("qkv", 0, query + 2 * kv, spec.num_heads),
    }


def _delta_net_parts(spec: DeltaNetSpec) -> dict[str, Part]:
    """Rows of the two projections, where a checkpoint does not have them by key head."""
    heads = spec.num_value_heads
    return {
        "delta_qkv": Part("delta_qkvz", 0, spec.num_channels),
        "delta_z": Part("delta_qkvz", spec.num_channels, spec.values_size),
        "delta_b": Part("delta_ba", 0, heads),
        "delta_a": Part("delta_ba", heads, heads),
    }


_FLOAT32 = frozenset(
    {
        *("sinks.weight", "router_correction.weight", "delta_decay.weight", "delta_time_bias.weight"),
        *("mamba_decay.weight", "mamba_time_bias.weight", "mamba_skip.weight", "mamba_scale.weight"),
    }
)


def is_float32(spec: DecoderSpec, name: str) -> bool:
    """Tell whether a tensor is kept in float32 whatever the model's dtype."""
    return name in _FLOAT32 or (spec.norm.kind == "wide_rms" and "norm." in name)


def _norm(spec: DecoderSpec, name: str, size: int) -> Shapes:
    weight: Shapes = {f"{name}.weight": (size,)}
    has_bias = spec.norm.kind == "layer" and spec.norm.bias
    return weight | {f"{name}.bias": (size,)} if has_bias else weight


def _norm_sizes(spec: DecoderSpec, layer: LayerSpec) -> dict[str, int]:
    """The norms of a layer, by name."""
    sizes: dict[str, int] = {}
    if spec.arrangement != "post_norm":
        if layer.attends or layer.recurrent is not None:
            sizes["attention_norm"] = spec.hidden_size
        if layer.mlp is not None:
            sizes["mlp_norm"] = spec.hidden_size
    if spec.arrangement in ("post_norm", "sandwich_norm"):
        sizes |= {"post_attention_norm": spec.hidden_size, "post_mlp_norm": spec.hidden_size}
    if not layer.attends:
        return sizes
    attention = spec.attention
    if attention.latent is not None:
        sizes["latent_norm"] = attention.latent.rank
        if attention.latent.query_rank is not None:
            sizes["query_latent_norm"] = attention.latent.query_rank
    if attention.qk_norm == "head":
        sizes |= {"query_norm": attention.head_dim, "key_norm": attention.head_dim}
    elif attention.qk_norm == "projection":
        sizes |= {"query_norm": attention.query_size, "key_norm": attention.kv_size}
    return sizes


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if bias else weight


def _attention(spec: AttentionSpec, hidden_size: int) -> Shapes:
    output = _linear("o", hidden_size, spec.output_size, spec.o_bias)
    if spec.latent is not None:
        return _latent_attention(spec, spec.latent, hidden_size) | output
    qkv_size = spec.query_size * (1 + spec.gated) + 2 * spec.kv_size
    shapes = _linear("qkv", qkv_size, hidden_size, spec.qkv_bias) | output
    return shapes | {"sinks.weight": (spec.num_heads,)} if spec.sinks else shapes


def _encoder_attention(spec: DecoderSpec) -> Shapes:
    """The tensors of attention to the rows of an encoder, which are as wide as the stream."""
    attention, size = spec.attention, spec.hidden_size
    return {
        **_norm(spec, "encoder_norm", size),
        **_linear("encoder_query", attention.query_size, size, attention.qkv_bias),
        **_linear("encoder_kv", 2 * attention.kv_size, size, attention.qkv_bias),
        **_linear("encoder_o", size, attention.output_size, attention.o_bias),
    }


def _recurrent(spec: RecurrentSpec, hidden_size: int) -> Shapes:
    match spec:
        case DeltaNetSpec():
            return _delta_net(spec, hidden_size)
        case MambaSpec():
            return _mamba(spec, hidden_size)
    return {
        **_linear("conv_in", 3 * spec.size, hidden_size, spec.bias),
        **_conv("conv_taps", spec.size, spec.kernel, spec.bias),
        **_linear("conv_o", hidden_size, spec.size, spec.bias),
    }


def _conv(name: str, channels: int, kernel: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (channels, 1, kernel)}
    return weight | {f"{name}.bias": (channels,)} if bias else weight


def _mamba(spec: MambaSpec, hidden_size: int) -> Shapes:
    heads, values = spec.num_heads, spec.values_size
    scale: Shapes = {} if spec.gate == "no_norm" else {"mamba_scale.weight": (values,)}
    return {
        **_linear("mamba_in", values + spec.num_channels + heads, hidden_size, spec.in_bias),
        **_conv("mamba_conv", spec.num_channels, spec.kernel, spec.conv_bias),
        **{f"mamba_{name}.weight": (heads,) for name in ("decay", "time_bias", "skip")},
        **scale,
        **_linear("mamba_o", hidden_size, values, spec.out_bias),
    }


def _delta_net(spec: DeltaNetSpec, hidden_size: int) -> Shapes:
    heads = spec.num_value_heads
    return {
        "delta_qkvz.weight": (spec.num_channels + spec.values_size, hidden_size),
        "delta_ba.weight": (2 * heads, hidden_size),
        "delta_conv.weight": (spec.num_channels, 1, spec.kernel),
        "delta_decay.weight": (heads,),
        "delta_time_bias.weight": (heads,),
        "delta_scale.weight": (spec.value_dim,),
        "delta_o.weight": (hidden_size, spec.values_size),
    }


def _latent_attention(spec: AttentionSpec, latent: LatentSpec, hidden_size: int) -> Shapes:
    """The tensors before attention. Only what the stream is multiplied by has biases."""
    shapes: Shapes = {}
    rank = latent.query_rank
    if rank is not None:
        shapes |= _linear("query_latent", rank, hidden_size, spec.qkv_bias)
    shapes |= _linear("query", spec.query_size, hidden_size if rank is None else rank, bias=False)
    shapes |= _linear("latent", spec.head_dim, hidden_size, spec.qkv_bias)
    return shapes | {"heads.weight": (spec.num_heads * (latent.plain + latent.value), latent.rank)}


def _mlp(spec: MLPSpec, hidden_size: int, prefix: str = "") -> Shapes:
    first, rows = ("gate_up", 2 * spec.size) if spec.gated else ("up", spec.size)
    return _linear(f"{prefix}{first}", rows, hidden_size, spec.bias) | _linear(
        f"{prefix}down", hidden_size, spec.size, spec.bias
    )


def _moe(spec: MoESpec, hidden_size: int) -> Shapes:
    experts = spec.num_experts if spec.experts_here is None else spec.experts_here
    first, rows = ("expert_gate_up", 2 * spec.size) if spec.gated else ("expert_up", spec.size)
    shapes: Shapes = {
        "router.weight": (spec.num_experts, hidden_size),
        f"{first}.weight": (experts, rows, hidden_size),
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
    shapes |= _mlp(MLPSpec(size=spec.shared_size, gated=spec.gated), hidden_size, prefix="shared_")
    return shapes | {"shared_switch.weight": (1, hidden_size)} if spec.shared_switch else shapes


def _gate_and_up(prefix: str, size: int) -> dict[str, Part]:
    module = f"{prefix}gate_up"
    return {
        f"{prefix}gate": Part(module, 0, size),
        f"{prefix}up": Part(module, size, size),
        f"{prefix}gate_and_up": Part(module, 0, 2 * size, paired_heads=1),
    }
