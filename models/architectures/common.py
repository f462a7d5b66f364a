"""Parts that the architectures share: an `Architecture`, and Llama's names for modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec
from pageant.models.weights import Places

__all__ = ["ATTENTION", "LATER_LAYER", "LLAMA", "MODEL", "MTP_MODULE", "Architecture", "MTPNames"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPNames:
    """Names that a family's checkpoints have for a layer that drafts (multi-token prediction).

    Its decoder layer has the names of any other layer, behind a prefix of its own.
    """

    prefix: str
    """Before the names of all its modules. "{layer}" stands for its number."""
    modules: Mapping[str, str]
    """Modules outside of its decoder layer, each with what it is here."""
    layer_prefix: str
    """Before the modules of its decoder layer. "{layer}" stands for its number."""
    follows: bool
    """Whether it is numbered on behind the layers of the model, and not from 0."""
    copies: tuple[str, ...] = ()
    """Copies of the model's own modules, which are passed over."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models, by the name that config.json's `architectures` has for it."""

    name: str
    spec: Callable[[Config], DecoderSpec]
    """Raises CheckpointError when the configuration makes no sense or is not supported."""
    names: Names
    mtp: MTPNames | None = None
    """Names of the layer that drafts, where the family's checkpoints have one."""

    def places(self, spec: DecoderSpec) -> Places:
        """Return where each tensor of a checkpoint goes, by its canonical name."""
        return self.names.places(spec)


MODEL = {"model.embed_tokens": "embedding", "model.norm": "final_norm", "lm_head": "lm_head"}

ATTENTION = {
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
}

LLAMA = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "mlp.down_proj": "down",
    },
)

LATER_LAYER = MTPNames(
    prefix="model.layers.{layer}.",
    modules={
        "eh_proj": "join",
        "enorm": "token_norm",
        "hnorm": "hidden_norm",
        "shared_head.norm": "final_norm",
    },
    layer_prefix="model.layers.{layer}.",
    follows=True,
    copies=("embed_tokens.", "shared_head.head."),
)
"""DeepSeek's, and GLM's."""

MTP_MODULE = MTPNames(
    prefix="mtp.",
    modules={
        "fc": "join",
        "pre_fc_norm_embedding": "token_norm",
        "pre_fc_norm_hidden": "hidden_norm",
        "norm": "final_norm",
    },
    layer_prefix="mtp.layers.{layer}.",
    follows=False,
)
"""Qwen's."""
