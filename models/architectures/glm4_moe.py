"""GLM-4.5 and 4.6: half of each head turned, dense layers first, then experts that sigmoids choose, and shared ones."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LATER_LAYER, Architecture
from pageant.models.architectures.moe import DEEPSEEK_MOE, chosen_by_sigmoid, dense_first, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "n_routed_experts"})
    attention = read_attention(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm="head" if config.flag("use_qk_norm") else None,
    )
    size = config.count("moe_intermediate_size")
    shared = config.count("n_shared_experts", 1, minimum=0)
    moe = read_moe(
        config,
        size=size,
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=8,
        shared_size=size * shared or None,
    )
    moe = replace(chosen_by_sigmoid(config, moe), shared_switch=False)
    rope = read_rope(config, attention.head_dim, default_share=0.5)
    layers = tuple(LayerSpec(mlp=mlp, rope=rope) for mlp in dense_first(config, moe, default=1))
    return read_decoder(config, attention, layers)


ARCHITECTURE = Architecture("Glm4MoeForCausalLM", _spec, DEEPSEEK_MOE, LATER_LAYER)
