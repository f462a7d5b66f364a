"""A decoder described by data: all that its layers need to know, whatever family it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Activation",
    "AttentionSpec",
    "DecoderSpec",
    "ExpertActivation",
    "LayerSpec",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MLPSpec",
    "MoESpec",
    "ModelSpec",
    "NormSpec",
    "RopeScaling",
    "RopeSpec",
    "YarnScaling",
]

Activation = Literal["silu", "gelu", "gelu_tanh"]
ExpertActivation = Activation | Literal["clamped_swiglu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """All norms of a decoder: root-mean-square norms, or layer norms with a bias.

    A `wide_rms` norm multiplies its weight in before it rounds to the model's dtype, a `rms` norm after.
    """

    eps: float
    kind: Literal["rms", "wide_rms", "layer"] = "rms"
    bias: bool = True
    """Whether layer norms have a bias; others have none."""


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
class YarnScaling:
    """YaRN's: as Llama 3's, but blended along the frequencies' order (Peng et al., 2023)."""

    factor: float
    attention_factor: float
    """What cosines and sines are multiplied by."""
    beta_fast: float
    """From so many turns in the original context on, a frequency is kept."""
    beta_slow: float
    """Up to so many turns, it is divided."""
    truncate: bool
    """Whether the bounds of the blend are rounded outwards to whole frequencies."""
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE's (Phi-3): a divisor for each frequency, from one of two lists (Ding et al., 2024).

    An engine that serves no more than the original context uses the short list for everything, one that
    serves more the long list. (transformers switches by the longest sequence of a batch, and computes
    the whole again when it does: what a cache holds would be wrong from one token to the next.)
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    attention_factor: float
    """What cosines and sines are multiplied by."""
    original_max_positions: int


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al., 2021), rotate-half pairing."""

    theta: float
    rotary_dim: int
    """How many of a head's elements are turned, the first ones; even."""
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention with grouped heads, the same in every layer but for window and rotary embedding."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """What a score is multiplied by."""
    softcap: float | None = None
    """Scores are bent into (-softcap, softcap) by a tanh (Gemma 2)."""
    sinks: bool = False
    """Whether each query head has a learned score of an entry without a value (gpt-oss)."""
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["head", "projection"] | None = None
    """A norm of queries and keys before the rotary embedding: of each head, or of all heads at once."""

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """MLP of the form down(act(gate(x)) * up(x)) where it is gated, and down(act(up(x))) where not."""

    size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """A mixture of gated experts: each token goes to `top_k` of them."""

    num_experts: int
    top_k: int
    size: int
    """Inner size of one expert."""
    normalise: bool
    """Whether the chosen experts' probabilities are scaled to sum to one."""
    activation: ExpertActivation = "silu"
    bias: bool = False
    """Whether the router and both products of experts have biases."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """What is made of the router's logits. Sigmoids are compared with a learned correction added to each."""
    groups: int = 1
    """Groups of experts by which sigmoids choose; see `Kernels.route_by_sigmoid`."""
    groups_kept: int = 1
    scale: float = 1.0
    """What the weights of experts that sigmoids choose are multiplied by."""
    shared_size: int | None = None
    """Inner size of an expert that every token goes to."""
    shared_switch: bool = True
    """Whether the shared expert is multiplied by the sigmoid of a gate of its own."""
    first_here: int = 0
    """The first of the experts whose weights are here."""
    experts_here: int | None = None
    """How many of them; None is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Layer of a decoder: what may differ from one to the next."""

    mlp: MLPSpec | MoESpec
    rope: RopeSpec | None
    """None where positions are not told by rotation."""
    window: int | None = None
    """How many tokens the layer attends over, the present one included; None is all of them. Where attention looks
    both ways, the window is odd, and the token stands in its middle."""
    attention_norm: bool = True
    """Whether the layer normalises its input, where the arrangement does (ModernBERT's first layer does not)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Model as the engine needs to know it, whatever its architecture."""

    vocab_size: int
    max_model_len: int
    """Positions that the model was made for, in tokens."""
    is_causal: bool = True
    """Whether tokens attend only to those before them. Others (encoders) need all of a text in one step, and keep
    nothing of it."""
    has_head: bool = True
    """Whether the model computes logits; one that only embeds or classifies does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec(ModelSpec):
    """A decoder or an encoder: embedding, layers, perhaps a final norm, and perhaps a head."""

    hidden_size: int
    attention: AttentionSpec
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    arrangement: Literal["pre_norm", "post_norm", "sandwich_norm", "parallel", "sum_norm"] = "pre_norm"
    """Where a layer's norms stand: before attention and MLP, after them, or both; or, in parallel, before
    both, which then read the same input; or over the sum of either and the stream (BERT)."""
    tie_word_embeddings: bool = False
    learned_positions: bool = False
    """Whether a learned vector for its position is added to each token's embedding."""
    num_position_rows: int | None = None
    """How many such vectors there are, where there are more than `max_model_len`."""
    position_offset: int = 0
    """The vector of the first position (RoBERTa's is behind that of padding)."""
    num_token_types: int = 0
    """How many learned vectors there are of the kind of a token's text, one of which is added to its embedding."""
    embedding_norm: bool = False
    """Whether embeddings are normalised."""
    embedding_scale: float | None = None
    """What embeddings are multiplied by, after rounding to the model's dtype."""
    scales_given_embeddings: bool = False
    """Whether embeddings that a request brings are multiplied too, as transformers does for some models."""
    residual_scale: float | None = None
    """What attention and MLP add to the stream is multiplied by."""
    logit_scale: float | None = None
    logit_softcap: float | None = None
    begins: bool = True
    """Whether it begins with the embedding. Later stages of a pipeline begin with the stream of the one before."""
    ends: bool = True
    """Whether it ends with the final norm, and the head if there is one. Earlier stages pass their stream on."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)
