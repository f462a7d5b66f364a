"""One decoder layer: attention and MLP, and the norms between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.attention import Attention
from pageant.models.decoder import Wanted
from pageant.models.delta_net import DeltaNet
from pageant.models.encoder_attention import EncoderAttention
from pageant.models.joint import Joint
from pageant.models.latent_attention import LatentAttention
from pageant.models.mamba import Mamba
from pageant.models.mlp import make_mlp
from pageant.models.norm import Norm
from pageant.models.projection import Projection
from pageant.models.recurrent_spec import DeltaNetSpec, MambaSpec, RecurrentSpec
from pageant.models.recurrent_states import Both
from pageant.models.short_conv import ShortConv
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec
from pageant.models.weights import Weights

__all__ = ["DecoderLayer"]


class DecoderLayer:
    """Adds what attention and the MLP make of the residual stream to it.

    `forward(hidden, residual, positions, batch, kv_cache, wanted)` takes and returns (hidden, residual),
    [T, hidden_size] each, whose sum is the stream. The sum is left to the next norm, which does it in the
    same pass. Without a residual (the first layer), hidden is the whole stream. It mutates the KV cache
    at the batch's slots. With `wanted`, it returns what is of those tokens: [D, hidden_size] each. Which
    arrangement it is, is chosen once.
    """

    forward: Callable[
        [Tensor, Tensor | None, Tensor, AttentionBatch, KVCache, Wanted | None], tuple[Tensor, Tensor | None]
    ]

    def __init__(
        self,
        spec: DecoderSpec,
        layer: LayerSpec,
        rotary: Tensor | None,
        weights: Weights,
        kernels: Kernels,
        joint: Joint | None = None,
    ) -> None:
        self.rope = layer.rope
        self.projections: dict[str, Projection] = {}
        mixers: list[Callable[..., Tensor]] = []
        if layer.attends:
            kind = Attention if spec.attention.latent is None else LatentAttention
            self.attention = kind(spec, layer.window, rotary, weights, kernels, joint)
            self.projections |= self.attention.projections
            mixers.append(_scaled(self.attention, spec.attention.output_scale))
        if layer.recurrent is not None:
            recurrent = _make_recurrent(layer.recurrent, spec, weights, kernels)
            self.projections |= recurrent.projections
            mixers.append(recurrent)
        if mixers:
            mixer = mixers[0] if len(mixers) == 1 else partial(_beside, mixers[0], mixers[1])
            self._attention = _scaled(mixer, spec.residual_scale)
        if layer.mlp is not None:
            mlp = make_mlp(layer, weights, kernels, joint)
            self.projections |= mlp.projections
            scale = layer.mlp.output_scale if isinstance(layer.mlp, MLPSpec) else None
            self._mlp = _scaled(_scaled(mlp, scale), spec.residual_scale)
        self.to_encoder = None
        if spec.encoder_rows is not None:
            assert spec.arrangement == "pre_norm" and joint is None, (
                "no family has another, and none is shared out"
            )
            self._encoder_norm = Norm(spec.norm, "encoder_norm", weights, kernels)
            self.to_encoder = EncoderAttention(spec, weights, kernels)
        if spec.arrangement != "post_norm":
            if layer.attention_norm and mixers:
                self._attention_norm = Norm(spec.norm, "attention_norm", weights, kernels)
            if layer.mlp is not None:
                self._mlp_norm = Norm(spec.norm, "mlp_norm", weights, kernels)
        if spec.arrangement in ("post_norm", "sandwich_norm"):
            self._post_attention_norm = Norm(spec.norm, "post_attention_norm", weights, kernels)
            self._post_mlp_norm = Norm(spec.norm, "post_mlp_norm", weights, kernels)
        self.forward = getattr(self, _arrangement(spec, layer))

    def _pre_norm(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        normed, residual = self._attention_norm.add(hidden, residual)
        attended = self._attention(normed, positions, batch, kv_cache, wanted)
        normed, residual = self._mlp_norm.add(attended, _of(residual, wanted))
        return self._mlp(normed), residual

    def _pre_norm_of_mlp(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        stream = hidden if residual is None else hidden + residual
        attended = self._attention(stream, positions, batch, kv_cache, wanted)
        normed, residual = self._mlp_norm.add(attended, _of(stream, wanted))
        return self._mlp(normed), residual

    def _pre_norm_of_mixer(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        normed, residual = self._attention_norm.add(hidden, residual)
        return self._attention(normed, positions, batch, kv_cache, wanted), _of(residual, wanted)

    def _pre_norm_of_mlp_alone(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        before = None if residual is None else _of(residual, wanted)
        normed, residual = self._mlp_norm.add(_of(hidden, wanted), before)
        return self._mlp(normed), residual

    def _pre_norm_with_encoder(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert self.to_encoder is not None and wanted is None, (
            "all tokens of a step attend to the encoder's rows"
        )
        normed, residual = self._attention_norm.add(hidden, residual)
        attended = self._attention(normed, positions, batch, kv_cache)
        normed, residual = self._encoder_norm.add(attended, residual)
        normed, residual = self._mlp_norm.add(self.to_encoder(normed), residual)
        return self._mlp(normed), residual

    def _sum_norm(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, None]:
        assert residual is None, "the stream is normalised as a whole"
        attended = self._attention(hidden, positions, batch, kv_cache, wanted)
        stream, _ = self._attention_norm.add(attended, _of(hidden, wanted))
        normed, _ = self._mlp_norm.add(self._mlp(stream), stream)
        return normed, None

    def _sandwich_norm(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        normed, residual = self._attention_norm.add(hidden, residual)
        attended = self._post_attention_norm(self._attention(normed, positions, batch, kv_cache, wanted))
        normed, residual = self._mlp_norm.add(attended, _of(residual, wanted))
        return self._post_mlp_norm(self._mlp(normed)), residual

    def _post_norm(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        stream = hidden if residual is None else hidden + residual
        attended = self._attention(stream, positions, batch, kv_cache, wanted)
        stream = _of(stream, wanted) + self._post_attention_norm(attended)
        return self._post_mlp_norm(self._mlp(stream)), stream

    def _parallel(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Tensor]:
        normed, stream = self._attention_norm.add(hidden, residual)
        attended = self._attention(normed, positions, batch, kv_cache, wanted)
        stream = _of(stream, wanted)
        return self._mlp(self._mlp_norm(stream)).add_(attended), stream


def _arrangement(spec: DecoderSpec, layer: LayerSpec) -> str:
    """Return the name of the method that computes such a layer."""
    if layer.mlp is None:
        return "_pre_norm_of_mixer"
    if not layer.attends and layer.recurrent is None:
        return "_pre_norm_of_mlp_alone"
    if spec.encoder_rows is not None:
        return "_pre_norm_with_encoder"
    return f"_{spec.arrangement}" if layer.attention_norm else "_pre_norm_of_mlp"


def _of(stream: Tensor, wanted: Wanted | None) -> Tensor:
    return stream if wanted is None else stream[wanted.tokens]


def _make_recurrent(
    recurrent: RecurrentSpec, spec: DecoderSpec, weights: Weights, kernels: Kernels
) -> DeltaNet | Mamba | ShortConv:
    match recurrent:
        case DeltaNetSpec():
            return DeltaNet(recurrent, spec.norm, weights, kernels)
        case MambaSpec():
            return Mamba(recurrent, spec.norm, weights, kernels)
    return ShortConv(weights, kernels)


def _beside(
    attention: Callable[..., Tensor],
    recurrent: Callable[..., Tensor],
    normed: Tensor,
    positions: Tensor,
    batch: Both,
    memory: Both,
    wanted: Wanted | None = None,
) -> Tensor:
    """Return the sum of what attention and a recurrent layer make of one input."""
    attended = attention(normed, positions, batch.attention, memory.attention, wanted)
    return recurrent(normed, positions, batch.recurrent, memory.recurrent, wanted).add_(attended)


def _scaled(part: Callable[..., Tensor], scale: float | None) -> Callable[..., Tensor]:
    """Return what the part computes, times the scale; the part itself where there is none."""
    return part if scale is None else lambda *inputs: part(*inputs).mul_(scale)
