"""DeepSeek-V3 and R1, Kimi K2, Moonlight: latent attention, and experts that sigmoids choose of some groups."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LATER_LAYER, Architecture
from pageant.models.architectures.latent import LATENT_MOE, read_latent_attention, read_rope_of_latents
from pageant.models.architectures.moe import chosen_by_sigmoid, dense_first, read_moe
from pageant.models.architectures.reading import read_decoder
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "n_routed_experts"})
    config.refuse("topk_method", "noaux_tc", "The family's experts are chosen with a correction.")
    config.refuse("moe_layer_freq", 1, "Every layer behind the dense ones has experts.")
    rope = read_rope_of_latents(config)
    attention = read_latent_attention(config, rope, in_pairs=config.flag("rope_interleave", True))
    size = config.count("moe_intermediate_size", 2048)
    shared = config.count("n_shared_experts", 1, minimum=0)
    moe = read_moe(
        config,
        size=size,
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=8,
        shared_size=size * shared or None,
    )
    moe = chosen_by_sigmoid(config, moe, default_groups=8, default_kept=4, default_scale=2.5)
    moe = replace(moe, shared_switch=False)
    layers = tuple(LayerSpec(mlp=mlp, rope=rope) for mlp in dense_first(config, moe, default=3))
    return read_decoder(config, attention, layers)


ARCHITECTURE = Architecture("DeepseekV3ForCausalLM", _spec, LATENT_MOE, LATER_LAYER)
