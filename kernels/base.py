"""The contract of a kernel backend, on the batches of `pageant.kernels.batches`.

Shapes are written with T tokens in the step, S sequences, R rows to sample, H query heads, Hkv key and value
heads (H is a multiple of Hkv), D the head's size, V the vocabulary, L the context's length.

A layer's KV cache is two tensors `[num_blocks, Hkv, block_size, D]`, one for keys and one for values. A head's
tokens are contiguous inside a block, which is the order in which attention reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pageant.kernels.batches import (
    NO_BIASES,
    UNMASKED,
    VOID,
    AttentionBatch,
    ExpertBiases,
    HeadNorms,
    KVCache,
    Narrowed,
    NeededLogits,
    NeededRest,
    SamplingTensors,
    Span,
    StateRows,
    TokenLogprobs,
    TokenMasks,
)
from pageant.kernels.logit_functions import LogitKernels
from pageant.kernels.low_rank import Addition
from pageant.kernels.quantized import QuantizedWeight, Weight
from pageant.kernels.recurrent_functions import RecurrentFunctions
from pageant.kernels.tiled import LinearWeight

__all__ = [
    "NO_BIASES",
    "UNMASKED",
    "VOID",
    "AttentionBatch",
    "ExpertBiases",
    "HeadNorms",
    "KVCache",
    "Kernels",
    "Narrowed",
    "NeededLogits",
    "NeededRest",
    "SamplingTensors",
    "Span",
    "StateRows",
    "TokenLogprobs",
    "TokenMasks",
]


@runtime_checkable
class Kernels(LogitKernels, RecurrentFunctions, Protocol):
    """The functions of every backend. All tensors are on one device; nothing is mutated unless the method says
    so.

    Rows of activations may be views into wider rows (a split of a fused projection). The last two dimensions of
    a query, key or value are contiguous; the first has any stride. So may rows of results.
    """

    name: str
    tiled_dtypes: frozenset[torch.dtype]
    """Dtypes for which `linear` is faster with tiled weights than with row-major ones: see `pageant.kernels.tiled`."""
    quantized_tiles: frozenset[torch.dtype]
    """Dtypes of x for which products with tiled quantised weights are faster: see `pageant.kernels.quantized`."""
    halves: frozenset[torch.dtype]
    """Dtypes of hidden states for which an 8-bit head is faster in halves: see `pageant.kernels.halves`."""

    def write_kv(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> None:
        """Write key and value [T, Hkv, D] to their slots (int64 [T], distinct). Mutates the caches."""
        ...

    def move_kv(self, caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
        """Copy whole blocks, sources to destinations (int64 [N] each), in every layer's cache.

        All reads come before all writes, so a destination may be another's source. Destinations are
        distinct. Mutates the caches, of which some may have no columns.
        """
        ...

    def move_slots(self, caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
        """Copy single tokens' keys and values, from slots to slots (int64 [N] each), in every layer's cache.

        All reads come before all writes. Destinations are distinct. Mutates the caches.
        """
        ...

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        value_dim: int | None = None,
    ) -> Tensor:
        """Attend from query [T, H, D] over the cached context; returns [T, H, D] in query's dtype.

        Query head h reads key head h // (H / Hkv). Scores are `scale * q.k`, then, with a softcap c,
        `c * tanh(score / c)`; the softmax is in float32. With sinks, float32 [H], the softmax of head h has one more
        score, sinks[h], that of an entry whose value is zero (Xiao et al., 2023). A slot that no sequence of the batch
        attends to is never read into a result, so it may hold anything, NaN included.

        With value_dim, values are the last so many numbers of keys, as `rope_and_write_latents` leaves them. The value
        cache is not read, and has no columns. The result is [T, H, value_dim]. Such a cache is in no 8 bits.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the root-mean-square norm over the last dimension of x [..., N], times weight [N].

        Computed in float32, and cast back to x's dtype before the multiplication by the weight, as transformers
        does.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return (rms_norm(x + residual), x + residual); x and residual are [T, N] of one dtype."""
        ...

    def wide_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the norm of `rms_norm`, with the weight, float32 [N], multiplied in before the one cast to x's
        dtype.
        """
        ...

    def add_wide_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return (wide_rms_norm(x + residual), x + residual); x and residual are [T, N] of one dtype."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Layer norm over the last dimension of x [..., N], by weight and bias [N] (Ba et al., 2016).

        In float32 throughout, cast back to x's dtype once.
        """
        ...

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return (layer_norm(x + residual), x + residual); x and residual are [T, N] of one dtype."""
        ...

    def rope(self, query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
        """Rotate query [T, H, D] and key [T, Hkv, D] by their positions (int64 [T]). Mutates both.

        Rotate-half (GPT-NeoX) pairing: element i goes with i + R/2. `cos_sin_cache` is float32
        [max_positions, R]: R/2 cosines, then R/2 sines. R is even and at most D: where it is less, a
        head's elements from R on stay as they are. In float32, cast back once.
        """
        ...

    def rope_and_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """Prepare a step's new heads for attention: norms, `rope` and `write_kv`, in that order.

        query [T, H, D] is normalised and rotated in place, key [T, Hkv, D] on its way into the cache, which
        gets value [T, Hkv, D] too. All three and the caches have one dtype; positions and slots are int64 [T].
        Without norms or cos_sin_cache, there is no norm or no rotation. Mutates query and the caches, and may
        leave anything in key.
        """
        ...

    def rope_and_write_latents(
        self,
        query: Tensor,
        latents: Tensor,
        weight: Tensor,
        eps: float,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Write a step's latents to their slots, and begin the queries that attend to them (DeepSeek-V2, 2024).

        latents [T, C + R] has each token's latent of keys and values, then the key that all heads share. The cache
        [num_blocks, 1, block_size, R + C] gets that key, rotated, then the `rms_norm` of the latent by weight [C].
        query: [T, H, N + R]. All have the cache's dtype, which is in no 8 bits. positions, slots: int64 [T].
        cos_sin_cache: see `rope`; its width is R. Without it, there is no rotation.

        Returns [T, H, R + C], contiguous: the last R numbers of each query, rotated, and room for those in the latent's
        space, which hold anything. Mutates the cache.
        """
        ...

    def multiply_heads(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x[:, h] @ weight[h] for each head h: x [T, H, N], weight [H, N, M]; returns [T, H, M].

        All are of one dtype, and may be views: x has contiguous rows, and one of the last two dimensions of weight is
        contiguous. With `out`, [T, H, M] with contiguous rows, the result is written there. Mutates only that.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up, [T, I], of gate_up [T, 2I] of the same dtype: gate first, then up."""
        ...

    def gelu_and_mul(self, gate_up: Tensor, tanh: bool) -> Tensor:
        """Return gelu(gate) * up, [T, I], of gate_up [T, 2I] of the same dtype: gate first, then up. `tanh`:
        see `gelu`.
        """
        ...

    def act_and_mul(self, gate_up: Tensor, activation: str) -> Tensor:
        """Return act(gate) * up, [T, I], of gate_up [T, 2I] of the same dtype; the activation is "silu", "gelu",
        "gelu_tanh" or "clamped_swiglu" (see `clamped_swiglu`).
        """
        ...

    def clamped_swiglu(self, gate_up: Tensor) -> Tensor:
        """Return gate * sigmoid(1.702 gate) * (up + 1), [T, I], of gate_up [T, 2I] of the same dtype: gate first.

        Gates are at most 7 first, and ups in [-7, 7], as gpt-oss has them. In float32, cast back once.
        """
        ...

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        """Return x's Gaussian error linear unit, of its shape [...] and dtype (Hendrycks, Gimpel, 2016).

        Exactly, by the error function, or by its tanh approximation (`gelu_new`, `gelu_pytorch_tanh`). In
        float32, cast back once.
        """
        ...

    def route(self, logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """Choose each token's K experts by router logits [T, E]; return (weights, experts), [T, K] each.

        Those of the largest logits, in falling order, the lowest id first among equals. The weights,
        float32, are their softmax probabilities over all experts (in float32); with `normalise` they are
        divided by their sum. The experts are int64.
        """
        ...

    def route_in_groups(
        self, logits: Tensor, top_k: int, normalise: bool, *, scale: float, groups: int, groups_kept: int
    ) -> tuple[Tensor, Tensor]:
        """Choose each token's K experts from some groups of neighbours; return (weights, experts), [T, K] each.

        logits: [T, E]. weights are float32 and experts int64, as of `route`. Only experts of those
        `groups_kept` groups are chosen whose largest logit is largest (DeepSeek-V2, 2024), the lowest first among
        equals. The weights are multiplied by `scale`.
        """
        ...

    def route_by_sigmoid(
        self,
        logits: Tensor,
        bias: Tensor,
        top_k: int,
        normalise: bool,
        *,
        scale: float = 1.0,
        groups: int = 1,
        groups_kept: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Choose each token's K experts by router logits, float32 [T, E]; return (weights, experts), [T, K] each.

        A score is the sigmoid of a logit. Those of the largest score and bias (float32 [E]) together are chosen, in
        falling order, the lowest id first among equals; of several groups of neighbours, only from those `groups_kept`
        whose two largest sum to most (DeepSeek-V3, 2024). The weights, float32, are the scores without the bias; with
        `normalise` they are divided by their sum. They are multiplied by `scale`. The experts are int64.
        """
        ...

    def moe(
        self,
        x: Tensor,
        gate_up: Weight,
        down: Weight,
        weights: Tensor,
        experts: Tensor,
        activation: str,
        *,
        biases: ExpertBiases = NO_BIASES,
        unrounded: bool = False,
    ) -> Tensor:
        """Return the weighted sum of what each token's experts make of it, [T, N] in x's dtype.

        x is [T, N]; gate_up [E, 2I, N] and down [E, N, I] are the experts' stacked weights; weights and
        experts [T, K] are `route`'s. An expert is down[e] @ (act(gate) * up), with an activation of `act_and_mul`
        and the biases of both products. The sum over experts is in float32. With the activation "relu2" there is no
        gate: gate_up is [E, I, N], and the square of what is positive in its product is in place of act(gate) * up.

        With `unrounded` it is the part of such a sum that some experts have: float32, in which what they make is not
        rounded either. A negative number in `experts` is an expert that is not here, and adds nothing.
        """
        ...

    def weigh_experts(self, made: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of what each token's experts made, [T, N] in the dtype of `made`.

        made: [T, K, N], contiguous. weights: float32 [T, K]. The sum is in float32, in the order of the K, and rounded
        once: as `moe` takes it where experts and tokens are together.
        """
        ...

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias: x [T, N], weight [M, N], bias [M]; returns [T, M] in x's dtype.

        A quantised weight counts as what it is dequantised to (`pageant.kernels.quantized` says how nearly),
        and one in tiles as its row-major matrix.
        """
        ...

    def gated_linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, activation: str) -> Tensor:
        """Return act(gate) * up, [T, I] in x's dtype, of `linear` with weight [2I, N]: gate first, then up.

        The activation is one of `act_and_mul`.
        """
        ...

    def gather_columns(self, x: Tensor, order: Tensor) -> Tensor:
        """Return x [T, N] with its columns in another order (int64 [N], each column once): [T, N], contiguous."""
        ...

    def add_low_rank(self, x: Tensor, y: Tensor, additions: Sequence[Addition]) -> None:
        """Mutate y [T, M]: add what each low-rank adapter makes of its tokens' rows of x [T, N] to theirs.

        y has x's dtype, and whole rows.
        """
        ...

    def logits(self, hidden: Tensor, weight: LinearWeight, needed: NeededLogits | None = None) -> Tensor:
        """Return hidden @ weight.T in float32, never rounded to a lesser dtype: [R, N], [V, N], [R, V].

        Args:
            needed: those that somebody reads, as `RecordingKernels.narrow` has them. Others may be computed, too.
        """
        ...

    def embed(self, token_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        """Return the weight's rows for token_ids (int64 [T]), [T, N], in dtype (a plain weight's own)."""
        ...

    def embed_share(self, token_ids: Tensor, weight: LinearWeight, first: int, dtype: torch.dtype) -> Tensor:
        """Return what a share of a vocabulary adds to the embeddings of tokens: float32 [T, N].

        Args:
            token_ids: int64 [T], of the whole vocabulary.
            weight: [V, N], the rows of the tokens from `first` on. Tokens without a row here have zeros.
            dtype: what rows are rounded to; see `embed`.
        """
        ...

    def quantize(self, weight: Tensor, into: QuantizedWeight) -> None:
        """Quantise a matrix [M, N] of any dtype and layout. Mutates `into`, which has its shape.

        Backends agree up to which of two scales is the better where errors are as good as equal.
        """
        ...
