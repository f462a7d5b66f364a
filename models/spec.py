"""A decoder described by data: all that its layers need to know, whatever family it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pageant.models.recurrent_spec import RecurrentSpec

__all__ = [
    "Activation",
    "AttentionSpec",
    "DecoderSpec",
    "ExpertActivation",
    "LatentSpec",
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

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]
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
    sections: tuple[int, int, int] | None = None
    """How many frequencies turn by positions in time, height and width, where images have such (M-RoPE); None is all
    by one position."""
    interleaved: bool = False
    """Whether these take turns, frequency by frequency, and do not follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are made of one latent a token.

    The cache holds that latent, and one key that is turned by its position and that all heads share.
    """

    rank: int
    """Width of the latent of keys and values."""
    rotary: int
    """How many elements of a head are turned; the last ones of a query."""
    plain: int
    """How many elements of a head's query and key are not turned; the first ones of a query."""
    value: int
    """Width of a head's values."""
    query_rank: int | None = None
    """Width of the latent that queries are made of; None where they are made of the layer's input."""
    in_pairs: bool = True
    """Whether a checkpoint has the elements that are turned together side by side."""
    eps: float = 1e-6
    """Of the norms of latents, which the configuration says nothing about."""

    @property
    def query(self) -> int:
        """Width of a head's query, before the part that is not turned is multiplied into the latent's space."""
        return self.plain + self.rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention with grouped heads, the same in every layer but for window and rotary embedding."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Of a key in the cache."""
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
    latent: LatentSpec | None = None
    """Where keys and values are made of latents. There is one key head then, of a latent and what is turned."""
    gated: bool = False
    """Whether each head's result is multiplied by the sigmoid of a gate, which the query's projection makes too."""
    output_scale: float | None = None
    """What the result is multiplied by."""

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * (self.head_dim if self.latent is None else self.latent.query)

    @property
    def output_size(self) -> int:
        """Width of what all query heads have attended to together."""
        return self.num_heads * self.value_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.head_dim if self.latent is None else self.latent.value

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
    gate_scale: float | None = None
    """What the gate's product is multiplied by, before its activation."""
    output_scale: float | None = None
    """What the result is multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """A mixture of experts: each token goes to `top_k` of them."""

    num_experts: int
    top_k: int
    size: int
    """Inner size of one expert."""
    normalise: bool
    """Whether the chosen experts' probabilities are scaled to sum to one."""
    activation: ExpertActivation = "silu"
    gated: bool = True
    """Whether experts, the shared one too, have a gate; see `MLPSpec`."""
    bias: bool = False
    """Whether the router and both products of experts have biases."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """What is made of the router's logits. Sigmoids are compared with a learned correction added to each."""
    groups: int = 1
    """Groups of neighbouring experts, of which the best are found first; see `Kernels.route`."""
    groups_kept: int = 1
    """Groups from which experts are chosen."""
    scale: float = 1.0
    """What the weights of experts are multiplied by."""
    exact_router: bool = False
    """Whether the router's logits are in float32 whatever the model's dtype; those of sigmoids always are."""
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

    mlp: MLPSpec | MoESpec | None
    """None where the layer ends behind attention, or behind its recurrent layer (Nemotron-H)."""
    rope: RopeSpec | None
    """None where positions are not told by rotation."""
    window: int | None = None
    """How many tokens the layer attends over, the present one included; None is all of them. Where attention looks
    both ways, the window is odd, and the token stands in its middle."""
    attends: bool = True
    """Whether the layer has attention."""
    recurrent: RecurrentSpec | None = None
    """The recurrent layer that it has in place of attention, or beside it, where both read the same input."""
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
    sees_whole_images: bool = False
    """Whether tokens of an image attend to each other both ways, so that one step has to compute them all."""

    @property
    def is_recurrent(self) -> bool:
        """Tell whether some layers keep a state of each sequence, in place of keys and values of each token."""
        return False


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
    encoder_rows: int | None = None
    """How many rows of an encoder every token attends to as well, after the tokens before it (Whisper); None is a
    decoder without an encoder."""
    begins: bool = True
    """Whether it begins with the embedding. Later stages of a pipeline begin with the stream of the one before."""
    joins: bool = False
    """Whether it begins with a projection of a token's embedding and the hidden state before it, both normalised (MTP),
    and has no embedding."""
    ends: bool = True
    """Whether it ends with the final norm, and the head if there is one. Earlier stages pass their stream on."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_recurrent(self) -> bool:
        """Tell whether some layers keep a state of each sequence, in place of keys and values of each token."""
        return any(layer.recurrent is not None for layer in self.layers)
