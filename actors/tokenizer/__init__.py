"""The tokenizer actor: prompts to token ids, and back."""

from __future__ import annotations

from pageant.actors.tokenizer.actor import LONG_CHARACTERS, SHORT_TOKENS, Tokenizer

__all__ = ["LONG_CHARACTERS", "SHORT_TOKENS", "Tokenizer"]
