"""BERT: an encoder whose norms stand over sums, with learned positions and kinds of text."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE", "bert_encoder", "bert_names"]


def bert_encoder(config: Config, position_offset: int = 0) -> DecoderSpec:
    """Read a BERT whose first position has the vector `position_offset`."""
    config.refuse("position_embedding_type", "absolute", "Only absolute positions are implemented.")
    config.refuse("is_decoder", False, "Only the encoder is implemented.")
    mlp = MLPSpec(
        size=config.count("intermediate_size"),
        activation=read_activation(config, "hidden_act", "gelu", ("gelu", "gelu_tanh")),
        gated=False,
        bias=True,
    )
    return read_decoder(
        config,
        read_attention(config, qkv_bias=True, o_bias=True),
        repeat(LayerSpec(mlp=mlp, rope=None), config),
        norm=NormSpec(eps=config.number("layer_norm_eps", 1e-12), kind="layer"),
        arrangement="sum_norm",
        is_causal=False,
        has_head=False,
        learned_positions=True,
        embedding_norm=True,
        num_position_rows=config.count("max_position_embeddings"),
        num_token_types=config.count("type_vocab_size", 2),
        position_offset=position_offset,
    )


def bert_names(prefix: str) -> Names:
    """Return the modules' names, with or without the prefix that models with a head give them."""
    return Names(
        model={
            "embeddings.word_embeddings": "embedding",
            "embeddings.position_embeddings": "position_embedding",
            "embeddings.token_type_embeddings": "token_type_embedding",
            "embeddings.LayerNorm": "embedding_norm",
        },
        layer_prefix="encoder.layer.{layer}.",
        layer={
            "attention.self.query": "query",
            "attention.self.key": "key",
            "attention.self.value": "value",
            "attention.output.dense": "o",
            "attention.output.LayerNorm": "attention_norm",
            "intermediate.dense": "up",
            "output.dense": "down",
            "output.LayerNorm": "mlp_norm",
        },
        prefixes={f"{prefix}.": ""},
        endings={".gamma": ".weight", ".beta": ".bias"},
        ignored=("embeddings.position_ids", "embeddings.token_type_ids"),
        ignored_modules=("pooler.", "classifier.", "cls.", "lm_head."),
    )


ARCHITECTURE = Architecture("BertModel", bert_encoder, bert_names("bert"))
