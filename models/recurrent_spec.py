"""Recurrent layers described by data: what each computes, and the sizes of a sequence's state. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["DeltaNetSpec", "MambaSpec", "RecurrentSpec", "ShortConvSpec", "StateSizes"]


class StateSizes(NamedTuple):
    """Sizes of a sequence's state in one layer: a matrix for each head, and the convolution's last inputs."""

    num_heads: int
    """Heads that have a matrix; 0 where the convolution is all that a layer remembers."""
    key_dim: int
    """Rows of a matrix."""
    value_dim: int
    """Columns of a matrix."""
    num_channels: int
    """Channels of the convolution."""
    kernel: int
    """Tokens that the convolution reads, the present one included."""

    @property
    def num_matrix_numbers(self) -> int:
        """Numbers of all matrices, [num_heads, key_dim, value_dim]; float32."""
        return self.num_heads * self.key_dim * self.value_dim

    @property
    def num_conv_numbers(self) -> int:
        """Numbers of the convolution's last inputs, [kernel - 1, num_channels]; of the model's dtype."""
        return (self.kernel - 1) * self.num_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSpec:
    """Gated DeltaNet (Yang et al., 2024): a layer that keeps a matrix for each head, however long the text is.

    A short causal convolution mixes each channel of queries, keys and values with those of the tokens before it.
    """

    num_key_heads: int
    """Of queries, too."""
    num_value_heads: int
    """A multiple of `num_key_heads`: so many neighbours share a key."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution reads, the present one included."""
    by_head: bool = True
    """Whether projections have all that belongs to one key head together, and not all queries, keys and values."""

    @property
    def keys_size(self) -> int:
        """Width of all keys together, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def values_size(self) -> int:
        """Width of all values together."""
        return self.num_value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Channels of the convolution: those of queries, then of keys, then of values."""
        return 2 * self.keys_size + self.values_size

    @property
    def state(self) -> StateSizes:
        """Sizes of a sequence's state."""
        return StateSizes(self.num_value_heads, self.key_dim, self.value_dim, self.num_channels, self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """Gated short convolution (LFM2): a causal convolution of each channel, between two gates made of the input."""

    size: int
    """Channels: the width of the stream."""
    kernel: int
    """Tokens that the convolution reads, the present one included."""
    bias: bool = False
    """Whether both projections and the convolution have biases."""

    @property
    def state(self) -> StateSizes:
        """Sizes of a sequence's state."""
        return StateSizes(0, 0, 0, self.size, self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba-2 (Dao, Gu, 2024): a state-space layer that keeps a matrix for each head.

    A short causal convolution, with a SiLU behind it, mixes each channel of values (x), keys (B) and queries (C).
    """

    num_heads: int
    head_dim: int
    """Width of a head's values."""
    num_groups: int
    """Groups of neighbouring heads that share a key and a query."""
    state_dim: int
    """Width of a key, and of a query."""
    kernel: int
    """Tokens that the convolution reads, the present one included."""
    conv_bias: bool = True
    in_bias: bool = False
    """Whether the projection of the input has a bias."""
    out_bias: bool = False
    """Whether the projection back to the stream has a bias."""
    time_step_limits: tuple[float, float] = (0.0, float("inf"))
    """Least and greatest time step of a token, after the softplus."""
    gate: Literal["before_norm", "after_norm", "no_norm"] = "before_norm"
    """Where the gate is multiplied in: "before_norm" or "after_norm"; "no_norm" is a layer without a norm."""
    multipliers: tuple[float, float, float, float, float] | None = None
    """What the parts of the input's projection are multiplied by: gate, values, keys, queries and time steps."""
    output_scale: float | None = None
    """What the layer's result is multiplied by."""

    @property
    def values_size(self) -> int:
        """Width of all values together, and of the gate."""
        return self.num_heads * self.head_dim

    @property
    def keys_size(self) -> int:
        """Width of all keys together, and of all queries."""
        return self.num_groups * self.state_dim

    @property
    def num_channels(self) -> int:
        """Channels of the convolution: those of values, then of keys, then of queries."""
        return self.values_size + 2 * self.keys_size

    @property
    def state(self) -> StateSizes:
        """Sizes of a sequence's state."""
        return StateSizes(self.num_heads, self.state_dim, self.head_dim, self.num_channels, self.kernel)


RecurrentSpec = DeltaNetSpec | ShortConvSpec | MambaSpec
