"""Mistral 7B and its kin: a Llama whose layers may all have a sliding window."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture, llama_places, llama_spec
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    # A null window is none at all; an absent one is the first model's.
    has_window = "sliding_window" in config or "sliding_window" not in config.values
    window = config.count("sliding_window", 4096) if has_window else None
    spec = llama_spec(config)
    return replace(spec, layer_windows=(window,) * spec.num_layers)


ARCHITECTURE = Architecture("MistralForCausalLM", _spec, llama_places)
