"""LFM2: gated short convolutions between layers of attention, an MLP in each; and its mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.moe import read_moe
from pageant.models.architectures.reading import read_attention, read_decoder
from pageant.models.architectures.recurrent import read_kinds
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.recurrent_spec import ShortConvSpec
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, MoESpec, NormSpec

__all__ = ["ARCHITECTURE", "MIXTURE"]

_OTHER_NAMES = {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"}


def _dense(config: Config) -> DecoderSpec:
    config = config.using(_OTHER_NAMES)
    count = config.count("num_hidden_layers")
    if "layer_types" not in config:
        config = _with_kinds(config, config.counts("full_attn_idxs"), count)
    return _decoder(config, (MLPSpec(size=_inner_size(config)),) * count)


def _mixture(config: Config) -> DecoderSpec:
    config = config.using(_OTHER_NAMES)
    config.refuse("use_expert_bias", True, "The family's experts are chosen with a correction.")
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size"),
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=4,
    )
    moe = replace(moe, scores="sigmoid", scale=config.number("routed_scaling_factor", 1.0))
    num_dense = config.count("num_dense_layers", 2, minimum=0)
    dense = MLPSpec(size=config.count("intermediate_size"))
    mlps = [dense if layer < num_dense else moe for layer in range(config.count("num_hidden_layers"))]
    return _decoder(config, mlps)


def _with_kinds(config: Config, attending: Sequence[int], count: int) -> Config:
    """Return a configuration that says by `layer_types` which layers attend."""
    kinds = ["full_attention" if number in attending else "conv" for number in range(count)]
    return Config({**config.values, "layer_types": kinds}, config.path, config.prefix, _OTHER_NAMES)


def _inner_size(config: Config) -> int:
    size = config.count("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    unit = config.count("block_multiple_of", 256)
    return -(-size // unit) * unit


def _decoder(config: Config, mlps: Sequence[MLPSpec | MoESpec]) -> DecoderSpec:
    kinds = read_kinds(config, ("conv", "full_attention"), len(mlps))
    attention = read_attention(config, qk_norm="head")
    rope = read_rope(config, attention.head_dim, default_theta=1_000_000.0)
    conv = ShortConvSpec(
        size=config.count("hidden_size"),
        kernel=config.count("conv_L_cache", 3, minimum=2),
        bias=config.flag("conv_bias"),
    )
    layers = tuple(
        LayerSpec(mlp=mlp, rope=rope)
        if kind == "full_attention"
        else LayerSpec(mlp=mlp, rope=None, attends=False, recurrent=conv)
        for mlp, kind in zip(mlps, kinds, strict=True)
    )
    norm = NormSpec(eps=config.number("norm_eps", 1e-5))
    return read_decoder(config, attention, layers, norm=norm, tied_by_default=True)


_NAMES = Names(
    model={
        "model.embed_tokens": "embedding",
        "model.embedding_norm": "final_norm",
        "lm_head": "lm_head",
    },
    layer={
        "self_attn.q_proj": "query",
        "self_attn.k_proj": "key",
        "self_attn.v_proj": "value",
        "self_attn.out_proj": "o",
        "self_attn.q_layernorm": "query_norm",
        "self_attn.k_layernorm": "key_norm",
        "conv.in_proj": "conv_in",
        "conv.conv": "conv_taps",
        "conv.out_proj": "conv_o",
        "operator_norm": "attention_norm",
        "ffn_norm": "mlp_norm",
        "feed_forward.w1": "gate",
        "feed_forward.w3": "up",
        "feed_forward.w2": "down",
        "feed_forward.gate": "router",
        "feed_forward.correction": "router_correction",
        "feed_forward.experts.{expert}.w1": "expert_gate",
        "feed_forward.experts.{expert}.w3": "expert_up",
        "feed_forward.experts.{expert}.w2": "expert_down",
    },
    endings={".feed_forward.expert_bias": ".feed_forward.correction.weight"},
)

ARCHITECTURE = Architecture("Lfm2ForCausalLM", _dense, _NAMES)
MIXTURE = Architecture("Lfm2MoeForCausalLM", _mixture, _NAMES)
