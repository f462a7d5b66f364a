"""Whisper: a decoder of texts that attends to an encoder of sounds. The encoder is in `pageant.models.audio`."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE"]

_KEYS = {
    "hidden_size": "d_model",
    "max_position_embeddings": "max_target_positions",
    "num_attention_heads": "decoder_attention_heads",
    "num_hidden_layers": "decoder_layers",
}


def _spec(config: Config) -> DecoderSpec:
    config = config.using(_KEYS)
    attention = read_attention(config, qkv_bias=True, o_bias=True)
    mlp = MLPSpec(
        size=config.count("decoder_ffn_dim"),
        activation=read_activation(config, "activation_function", "gelu", ("gelu", "gelu_tanh")),
        gated=False,
        bias=True,
    )
    size = config.count("hidden_size")
    return read_decoder(
        config,
        attention,
        repeat(LayerSpec(mlp=mlp, rope=None), config),
        norm=NormSpec(eps=1e-5, kind="layer"),
        tied_by_default=True,
        learned_positions=True,
        embedding_scale=size**0.5 if config.flag("scale_embedding") else None,
        encoder_rows=config.count("max_source_positions"),
    )


_NAMES = Names(
    model={
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.embed_positions": "position_embedding",
        "model.decoder.layer_norm": "final_norm",
        "lm_head": "lm_head",
    },
    layer_prefix="model.decoder.layers.{layer}.",
    layer={
        "self_attn_layer_norm": "attention_norm",
        "self_attn.q_proj": "query",
        "self_attn.k_proj": "key",
        "self_attn.v_proj": "value",
        "self_attn.out_proj": "o",
        "encoder_attn_layer_norm": "encoder_norm",
        "encoder_attn.q_proj": "encoder_query",
        "encoder_attn.k_proj": "encoder_key",
        "encoder_attn.v_proj": "encoder_value",
        "encoder_attn.out_proj": "encoder_o",
        "final_layer_norm": "mlp_norm",
        "fc1": "up",
        "fc2": "down",
    },
    prefixes={"proj_out.": "lm_head."},
    ignored_modules=("model.encoder.",),
    without_bias=("key", "encoder_key"),
)

ARCHITECTURE = Architecture("WhisperForConditionalGeneration", _spec, _NAMES)
