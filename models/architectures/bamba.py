"""Bamba: Mamba-2 layers and a few of attention, which turns half of each head, with an MLP in every layer."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp
from pageant.models.architectures.recurrent import MAMBA, MAMBA_ENDINGS, read_mamba
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE", "FEED_FORWARD_NAMES"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    mlp = read_mlp(config, bias=config.flag("mlp_bias"))
    rope = read_rope(config, attention.head_dim, default_share=0.5)
    in_bias = config.flag("mamba_proj_bias")
    mamba = read_mamba(config, in_bias=in_bias, out_bias=in_bias)
    attending = config.counts("attn_layer_indices")
    count = config.count("num_hidden_layers")
    if not set(attending) & set(range(count)):
        raise config.wrong("attn_layer_indices", list(attending), f"some of the {count} layers")
    layers = tuple(
        LayerSpec(mlp=mlp, rope=rope)
        if number in attending
        else LayerSpec(mlp=mlp, rope=None, attends=False, recurrent=mamba)
        for number in range(count)
    )
    return read_decoder(config, attention, layers)


_KEPT = {theirs: ours for theirs, ours in LLAMA.layer.items() if ours != "mlp_norm"}
FEED_FORWARD_NAMES: Names = replace(
    LLAMA,
    model={"model.embed_tokens": "embedding", "model.final_layernorm": "final_norm", "lm_head": "lm_head"},
    layer={
        **{theirs.replace("mlp.", "feed_forward."): ours for theirs, ours in _KEPT.items()},
        **MAMBA,
        "pre_ff_layernorm": "mlp_norm",
    },
    endings=MAMBA_ENDINGS,
)
"""Llama's names with a Mamba-2 layer, where MLPs are called feed-forward."""

ARCHITECTURE = Architecture("BambaForCausalLM", _spec, FEED_FORWARD_NAMES)
