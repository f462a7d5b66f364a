"""DeepSeek-V2 and V2-Lite: latent attention, and experts that a softmax chooses, perhaps of some groups."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.latent import LATENT_MOE, read_latent_attention, read_rope_of_latents
from pageant.models.architectures.moe import dense_first, in_groups, read_moe
from pageant.models.architectures.reading import read_decoder
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec, MoESpec

__all__ = ["ARCHITECTURE"]

_GREEDY, _GROUPED = "greedy", "group_limited_greedy"
_IMPLEMENTATIONS = "Implementations differ in what else they mean by it."


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "n_routed_experts"})
    config.refuse("mlp_bias", False, "No DeepSeek-V2 has biases in its MLPs.")
    rope = read_rope_of_latents(config)
    attention = read_latent_attention(config, rope)
    layers = tuple(LayerSpec(mlp=mlp, rope=rope) for mlp in dense_first(config, _moe(config)))
    return read_decoder(config, attention, layers)


def _moe(config: Config) -> MoESpec:
    config.refuse("norm_topk_prob", False, _IMPLEMENTATIONS)
    config.refuse("scoring_func", "softmax", "The family's experts are chosen by a softmax.")
    config.refuse("moe_layer_freq", 1, "Every layer behind the dense ones has experts.")
    size = config.count("moe_intermediate_size", 1407)
    shared = config.count("n_shared_experts", 2, minimum=0)
    moe = read_moe(config, size=size, normalise=False, default_top_k=6, shared_size=size * shared or None)
    moe = replace(moe, shared_switch=False, exact_router=True)
    method = config.text("topk_method", _GREEDY)
    if method == _GREEDY:
        return replace(moe, scale=config.number("routed_scaling_factor", 1.0))
    if method != _GROUPED:
        raise config.wrong("topk_method", method, f"{_GREEDY} or {_GROUPED}")
    return in_groups(config, moe)


ARCHITECTURE = Architecture("DeepseekV2ForCausalLM", _spec, LATENT_MOE)
