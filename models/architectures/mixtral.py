"""Mixtral: a Mistral whose MLPs are mixtures of experts."""

from __future__ import annotations

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.moe import read_moe
from pageant.models.architectures.reading import read_attention, read_decoder, read_window, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts"})
    attention = read_attention(config)
    layer = LayerSpec(
        mlp=read_moe(config, size=config.count("intermediate_size"), normalise=True, default_top_k=2),
        rope=read_rope(config, attention.head_dim, default_theta=1_000_000.0),
        window=read_window(config),
    )
    return read_decoder(config, attention, repeat(layer, config))


_NAMES = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "block_sparse_moe.gate": "router",
        "block_sparse_moe.experts.{expert}.w1": "expert_gate",
        "block_sparse_moe.experts.{expert}.w3": "expert_up",
        "block_sparse_moe.experts.{expert}.w2": "expert_down",
    },
)

ARCHITECTURE = Architecture("MixtralForCausalLM", _spec, _NAMES)
