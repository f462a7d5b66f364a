"""The contract of a kernel backend, and the batches that its functions take.

Shapes are written with T tokens in the step, S sequences, R rows to sample, H query heads, Hkv key and value
heads (H is a multiple of Hkv), D the head's size, V the vocabulary, L the context's length.

A layer's KV cache is two tensors `[num_blocks, Hkv, block_size, D]`, one for keys and one for values. A head's
tokens are contiguous inside a block, which is the order in which attention reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pageant.kernels.low_rank import Addition
from pageant.kernels.quantized import QuantizedWeight, Weight
from pageant.kernels.tiled import LinearWeight

__all__ = [
    "NO_BIASES",
    "AttentionBatch",
    "ExpertBiases",
    "HeadNorms",
    "KVCache",
    "Kernels",
    "NeededLogits",
    "SamplingTensors",
    "TokenLogprobs",
    "TokenMasks",
]

KVCache = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionBatch:
    """The packed tokens of one step: their sequences, positions and KV slots.

    The T tokens are those of sequence 0, then those of sequence 1, and so on. A new batch is made for each step
    and never written to while in use, since a backend derives once what all layers share, and keeps it in
    `derived`.

    Positions and slots are separate, so that a token's place in memory need not follow its place in the text. A
    token attends over the entries `j` of its sequence's table with `j < context_lengths[s]` and `j <=
    positions[t]`, and with a window also `j > positions[t] - window`.

    A token with `ancestors` belongs to a tree of drafts. Its sequence's n tokens of this step, at most 64, are
    the last n entries of its table, in order. It attends over all entries before those n, with a window only
    over those with `j > positions[t] - window`. Of the n it attends over those that its mask names, with a
    window only where `positions[i] > positions[t] - window`. `positions` are depths in the text, so that
    siblings share one; they are not compared with the indices of entries. A token's own bit is set, or it does
    not attend to itself. A mask that names all tokens up to its own gives causal attention, bit by bit.
    """

    query_starts: Tensor
    """int32 [S+1]: sequence s owns rows query_starts[s]:query_starts[s+1] of the step, maybe none."""
    context_lengths: Tensor
    """int32 [S]: KV entries attended over, this step's own included."""
    block_tables: Tensor
    """int32 [S, max_blocks]: what is past a sequence's last block is never used, whatever it holds."""
    slots: Tensor
    """int64 [T]: where each token's key and value go: block * block_size + offset."""
    positions: Tensor
    """int64 [T]: each token's place in its text, for rotary embedding and causality."""
    max_query_length: int
    max_context_length: int
    ancestors: Tensor | None = None
    """int64 [T]: bit i names its sequence's i-th token of this step. 0, or no masks at all: causal."""
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend."""
    others: tuple[AttentionBatch, ...] = ()
    """The same step in the other groups of layers, if there are any: with block tables and slots of their own."""

    @property
    def groups(self) -> tuple[AttentionBatch, ...]:
        """Return the step in each layer group."""
        return self, *self.others

    @classmethod
    def of_groups(
        cls,
        block_tables: Tensor | Sequence[Tensor],
        slots: Tensor | Sequence[Tensor],
        *,
        query_starts: Tensor,
        context_lengths: Tensor,
        positions: Tensor,
        max_query_length: int,
        max_context_length: int,
        ancestors: Tensor | None = None,
    ) -> AttentionBatch:
        """Return a step for G layer groups.

        block_tables: int32 [G, S, max_blocks]. slots: int64 [G, T]. Both may be one tensor or a sequence of G.
        The other arguments are the fields of the class.
        """
        found: tuple[AttentionBatch, ...] = ()
        for group in reversed(range(len(slots))):
            batch = cls(
                query_starts=query_starts,
                context_lengths=context_lengths,
                block_tables=block_tables[group],
                slots=slots[group],
                positions=positions,
                max_query_length=max_query_length,
                max_context_length=max_context_length,
                ancestors=ancestors,
                others=found,
            )
            found = batch, *found
        return found[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadNorms:
    """Root-mean-square norms of all query heads and of all key heads."""

    query: Tensor
    """[D], float32 where `wide`."""
    key: Tensor
    """[D], float32 where `wide`."""
    eps: float
    wide: bool
    """Whether they are `wide_rms_norm`s."""


class ExpertBiases(NamedTuple):
    """Biases of the experts of a mixture, in the dtype of what they are added to; None is none."""

    gate_up: Tensor | None = None
    """[E, 2I]: gate first, then up."""
    down: Tensor | None = None
    """[E, N]."""


class TokenMasks(NamedTuple):
    """Masks of the tokens that some rows of logits may sample."""

    rows: Tensor
    """int64 [n]: which rows, each at most once."""
    bits: Tensor
    """int32 [n, V / 32 rounded up]: token t may be drawn if bit t % 32 of [i, t // 32] is 1."""


class NeededLogits(NamedTuple):
    """The logits of a step that will be read, for backends that compute others not at all
    (`pageant.kernels.cpu.narrowing`).
    """

    which: Tensor
    """int64, as the backend has it."""
    into: Tensor | None = None
    """float32 [R, V]: where they go, beside those that are there already."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SamplingTensors:
    """Sampling parameters of each row. A row's token depends on its own entries and logits alone."""

    temperature: Tensor
    """float32 [R]: below 1e-5 the row is greedy, and every other field is ignored."""
    top_k: Tensor
    """int32 [R]: 0 is off."""
    top_p: Tensor
    """float32 [R]: 1 is off."""
    min_p: Tensor
    """float32 [R]: 0 is off."""
    seed: Tensor
    """int64 [R]: the request's seed, all 64 bits of it."""
    sample: Tensor
    """int32 [R]: which of the request's parallel samples."""
    position: Tensor
    """int64 [R]: the position that the drawn token will have."""


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities of each row, float32, before any filter or temperature.

    Tokens are ranked by their logits from 1 on, the lowest id first among equals.
    """

    chosen: Tensor
    """float32 [R]: of the row's own token."""
    ranks: Tensor
    """int32 [R]: that token's rank."""
    top_tokens: Tensor
    """int32 [R, k]: the first k tokens by rank."""
    top: Tensor
    """float32 [R, k]: theirs."""


NO_BIASES = ExpertBiases()


@runtime_checkable
class Kernels(Protocol):
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
        distinct. Mutates the caches.
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
    ) -> Tensor:
        """Attend from query [T, H, D] over the cached context; returns [T, H, D] in query's dtype.

        Query head h reads key head h // (H / Hkv). Scores are `scale * q.k`, then, with a softcap c,
        `c * tanh(score / c)`; the softmax is in float32. With sinks, float32 [H], the softmax of head h has one more
        score, sinks[h], that of an entry whose value is zero (Xiao et al., 2023). A slot that no sequence of the batch
        attends to is never read into a result, so it may hold anything, NaN included.
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
        and the biases of both products. The sum over experts is in float32.

        With `unrounded` it is the part of such a sum that some experts have: float32, in which what they make is not
        rounded either. A negative number in `experts` is an expert that is not here, and adds nothing.
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
            needed: those that somebody reads, as `CpuKernels.narrow` has them. Others of a backend may be, too.
        """
        ...

    def embed(self, token_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        """Return the weight's rows for token_ids (int64 [T]), [T, N], in dtype (a plain weight's own)."""
        ...

    def quantize(self, weight: Tensor, into: QuantizedWeight) -> None:
        """Quantise a matrix [M, N] of any dtype and layout. Mutates `into`, which has its shape.

        Backends agree up to which of two scales is the better where errors are as good as equal.
        """
        ...

    def mask_logits(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Mutate rows (int64 [n]) of logits (float32 [R, V]): tokens that may not be drawn become -inf.

        Token t of row rows[i] may be drawn if bit t % 32 of bits[i, t // 32] is 1: int32 [n, V / 32 rounded up].
        """
        ...

    def sample(self, logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
        """Draw a token for each row of logits (float32 [R, V]); returns int64 [R].

        With masks it is as after `mask_logits`, and the logits of their rows may have been overwritten so.

        A greedy row takes the largest logit, the lowest id on a tie. The others draw by Gumbel-max
        (see `pageant.kernels.sampling`): a row's token depends on its own logits and parameters alone.
        """
        ...

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
        """Return the log-softmax of logits (float32 [R, V]) at tokens (int64 [R]) and at the k largest.

        k is from 0 to V.
        """
        ...
