"""An architecture that config.json names `CoinForCausalLM`: Llama under another name."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures import llama

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = replace(llama.ARCHITECTURE, name="CoinForCausalLM")
