"""Multi-head latent attention (DeepSeek-V2, 2024) of one layer, from the normalised input to its output projection.

Keys and values are linear in a token's latent. So a head's query can be brought into the latent's space instead
("absorbed"). All heads then attend to the cached latents, as to one key head. The result is multiplied to values after.
No head's keys and values are ever made of the context.
"""

from __future__ import annotations

from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.decoder import Wanted
from pageant.models.joint import Joint
from pageant.models.norm import Norm
from pageant.models.projection import Projection, output_projection
from pageant.models.spec import DecoderSpec, NormSpec
from pageant.models.weights import Weights

__all__ = ["LatentAttention"]


class LatentAttention:
    """Attention whose cache holds one latent a token; `rotary` is None where nothing is turned."""

    def __init__(
        self,
        spec: DecoderSpec,
        window: int | None,
        rotary: Tensor | None,
        weights: Weights,
        kernels: Kernels,
        joint: Joint | None = None,
    ) -> None:
        attention = spec.attention
        latent = attention.latent
        assert latent is not None, "keys and values are made of latents"
        self._kernels, self.rotary, self._latent_spec = kernels, rotary, latent
        self._num_heads, self._scale, self._window = attention.num_heads, attention.scale, window
        self._query = Projection("query", weights, kernels)
        self._latent = Projection("latent", weights, kernels)
        self._o = output_projection("o", weights, kernels, joint)
        self.projections = {"query": self._query, "latent": self._latent, "o": self._o}
        self._query_latent: Projection | None = None
        if latent.query_rank is not None:
            self._query_latent = self.projections["query_latent"] = Projection(
                "query_latent", weights, kernels
            )
            self._query_norm = Norm(NormSpec(eps=latent.eps), "query_latent_norm", weights, kernels)
        self._latent_weight = weights["latent_norm.weight"]
        heads = weights["heads.weight"].view(attention.num_heads, latent.plain + latent.value, latent.rank)
        self._to_latent = heads[:, : latent.plain]  # [H, plain, rank]: of queries
        self._to_values = heads[:, latent.plain :].transpose(1, 2)  # [H, rank, value]

    def __call__(
        self,
        normed: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> Tensor:
        """Return [T, hidden_size] for normed [T, hidden_size], or [D, hidden_size] for the tokens that are `wanted`.
        Mutates the cache at the batch's slots, for all."""
        kernels, latent = self._kernels, self._latent_spec
        queries = self._queries(normed)
        absorbed = kernels.rope_and_write_latents(
            queries,
            self._latent(normed),
            self._latent_weight,
            latent.eps,
            self.rotary,
            positions,
            kv_cache[0],
            batch.slots,
        )
        if wanted is not None:
            queries, absorbed, batch = queries[wanted.tokens], absorbed[wanted.tokens], wanted.batch
        kernels.multiply_heads(
            queries[..., : latent.plain], self._to_latent, out=absorbed[..., latent.rotary :]
        )
        attended = kernels.paged_attention(
            absorbed, *kv_cache, batch, self._scale, self._window, value_dim=latent.rank
        )
        return self._o(kernels.multiply_heads(attended, self._to_values).flatten(1))

    def _queries(self, normed: Tensor) -> Tensor:
        """Return each head's query, [T, H, plain + rotary], before its last elements are turned."""
        x = normed if self._query_latent is None else self._query_norm(self._query_latent(normed))
        return self._query(x).view(normed.shape[0], self._num_heads, -1)
