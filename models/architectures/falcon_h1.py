"""Falcon-H1: attention and Mamba-2 side by side in every layer, and multipliers of nearly everything."""

from __future__ import annotations

from pageant.models.architectures.bamba import FEED_FORWARD_NAMES
from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.architectures.recurrent import read_mamba, read_multipliers
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.recurrent_spec import MambaSpec
from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec

__all__ = ["ARCHITECTURE"]

_WITH_BIAS = "A bias is not multiplied with the input in this version."


def _spec(config: Config) -> DecoderSpec:
    attention = _attention(config)
    gate, down = read_multipliers(config, "mlp_multipliers", 2)
    mlp = MLPSpec(
        size=config.count("intermediate_size"),
        activation=read_activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias"),
        gate_scale=None if gate == 1 else gate,
        output_scale=None if down == 1 else down,
    )
    layer = LayerSpec(mlp=mlp, rope=read_rope(config, attention.head_dim), recurrent=_mamba(config))
    return read_decoder(
        config,
        attention,
        repeat(layer, config),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=config.number("lm_head_multiplier", 1.0),
    )


def _attention(config: Config) -> AttentionSpec:
    """Read attention, whose scores and results take the multipliers of its inputs, keys and outputs."""
    biased = config.flag("attention_bias")
    times = config.number("attention_in_multiplier", 1.0)
    keys = config.number("key_multiplier", 1.0)
    if biased and (times, keys) != (1.0, 1.0):
        raise config.wrong("attention_bias", True, "false, as there are multipliers", _WITH_BIAS)
    attention = read_attention(config)
    output = times * config.number("attention_out_multiplier", 1.0)
    return read_attention(
        config,
        scale=attention.scale * times**2 * keys,
        qkv_bias=biased,
        o_bias=biased,
        output_scale=None if output == 1 else output,
    )


def _mamba(config: Config) -> MambaSpec:
    times = config.number("ssm_in_multiplier", 1.0)
    in_bias = config.flag("mamba_proj_bias")
    if in_bias and times != 1:
        raise config.wrong("mamba_proj_bias", True, "false, as ssm_in_multiplier is not 1", _WITH_BIAS)
    gate, values, keys, queries, steps = (
        times * one for one in read_multipliers(config, "ssm_multipliers", 5)
    )
    multipliers = (gate, values, keys, queries, steps)
    output = config.number("ssm_out_multiplier", 1.0)
    before = "after_norm" if config.flag("mamba_norm_before_gate", True) else "before_norm"
    return read_mamba(
        config,
        values_size=None if config.is_null("mamba_d_ssm") else config.count("mamba_d_ssm", 1024),
        in_bias=in_bias,
        out_bias=config.flag("projectors_bias"),
        gate=before if config.flag("mamba_rms_norm") else "no_norm",
        multipliers=None if set(multipliers) == {1.0} else multipliers,
        output_scale=None if output == 1 else output,
    )


ARCHITECTURE = Architecture("FalconH1ForCausalLM", _spec, FEED_FORWARD_NAMES)
