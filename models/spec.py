"""A decoder described by data: all that its layers need to know, whatever family it is from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecoderSpec", "LinearScaling", "Llama3Scaling", "RopeSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by `factor` (Chen et al., 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's: low frequencies are divided by `factor`, high ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding over the whole head (Su et al., 2021), rotate-half pairing."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder with RMS norms, rotary embedding, grouped heads and a SiLU-gated MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    max_model_len: int
    """Positions that the model was made for, in tokens."""
    layer_windows: tuple[int | None, ...]
    """For each layer, how many tokens it attends over, itself included; None is all of them."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """An RMS norm over each head of queries and keys, before the rotary embedding (Qwen3)."""
    activation: str = "silu"

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim
