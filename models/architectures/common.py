"""Parts that the architectures share: an `Architecture`, and Llama's names for modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec
from pageant.models.weights import Places

__all__ = ["ATTENTION", "LLAMA", "MODEL", "Architecture"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models, by the name that config.json's `architectures` has for it."""

    name: str
    spec: Callable[[Config], DecoderSpec]
    """Raises CheckpointError when the configuration makes no sense or is not supported."""
    names: Names

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
