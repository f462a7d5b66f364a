"""The decoder of the architectures that are described here: layers put together from a specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache, NeededLogits
from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.stage_links import StageLinks
from pageant.kernels.halves import HALVED_INPUTS_MAX
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import Bits, QuantizedWeight, Weight, empty_quantized
from pageant.kernels.tiled import LinearWeight, TiledWeight, empty_tiled, fit_tiles
from pageant.models.axis_rotation import AxisRotation
from pageant.models.both_ways import look_both_ways, look_within, wanted_both_ways
from pageant.models.decoder import Embedded, Wanted
from pageant.models.joint import Joint
from pageant.models.kv_cache import KVLayout
from pageant.models.layer_groups import LayerGroups
from pageant.models.layers import DecoderLayer
from pageant.models.norm import Norm
from pageant.models.placing import view_of
from pageant.models.projection import Projection
from pageant.models.quantization import Quantization, quantized_bits
from pageant.models.ready.weights import Form, Key, forms_of_layers
from pageant.models.recurrent_states import RecurrentStates
from pageant.models.rotary import rotary_table
from pageant.models.sharding import (
    ExpertSharing,
    Shard,
    is_segmented,
    local_spec,
    segment_names,
    segment_shape,
)
from pageant.models.spec import DecoderSpec, LayerSpec
from pageant.models.weights import Place, head_name, is_float32, layer_parts, layer_shapes, model_shapes

__all__ = ["NativeDecoder"]


class NativeDecoder:
    """A `Decoder` of a `DecoderSpec`: its weights on one device, and its forward pass.

    Weights are allocated and left as they are found in memory: `pageant.models.loading` fills them.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        dtype: torch.dtype,
        device: torch.device | str,
        kernels: Kernels,
        max_model_len: int | None = None,
        quantization: Quantization | None = None,
        head_quantization: Quantization | None = None,
        forms: Mapping[Key, Form] | None = None,
        shard: Shard | None = None,
    ) -> None:
        """`max_model_len` is how many positions are served, where it is fewer than the spec's.

        Weights are kept in what `quantization` says, and embedding and head in `head_quantization` where it is given;
        those that come quantised in the forms of their checkpoint. With `shard`, they are those of a rank's share
        of the model that the spec describes.
        """
        self.windows = tuple(layer.window for layer in spec.layers if layer.attends)
        self.shard, self._joint = shard, None
        self._experts: ExpertSharing = "cut" if shard is None else shard.experts
        self._own_layers = range(spec.num_layers)
        if shard is not None:
            self._own_layers = shard.stage.layers(spec.num_layers)
            if shard.is_joint:
                self._joint = Joint(
                    shard.rank, shard.ranks, spec.vocab_size, shard.segments_here, shard.experts
                )
            spec = local_spec(spec, shard)
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.kernels = kernels
        self._quantization, self._head_quantization = quantization, head_quantization
        self._forms = forms_of_layers(forms or {}, self._own_layers)
        self._links: StageLinks | None = None
        self.taps: tuple[int, ...] = ()
        self.tapped: Tensor | None = None
        self.groups = LayerGroups.one(self.windows) if spec.is_causal else LayerGroups.scratch(self.windows)
        self.kv_dtype = dtype
        self.states = RecurrentStates(spec, dtype) if spec.is_recurrent else None
        self._pages = Pages(self.device)
        shapes = model_shapes(spec)
        head = head_name(spec) if spec.has_head else ""
        self._weights: dict[str, LinearWeight] = {
            name: self._empty_head((None, name), shape) if name == head else self._empty((None, name), shape)
            for name, shape in shapes.items()
        }
        self._layer_weights = [self._empty_layer(number, layer) for number, layer in enumerate(spec.layers)]
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        tables = {
            rope: rotary_table(rope, max_model_len or spec.max_model_len, self.device) for rope in ropes
        }
        self._layers = [
            DecoderLayer(
                spec, layer, tables[layer.rope] if layer.rope else None, weights, kernels, self._joint
            )
            for layer, weights in zip(spec.layers, self._layer_weights, strict=True)
        ]
        self._axis_rotation = AxisRotation(self._layers, tables)
        self._final_norm = self._embedding_norm = None
        if spec.ends and spec.arrangement != "sum_norm":
            self._final_norm = Norm(spec.norm, "final_norm", self._weights, kernels)
        if spec.begins and spec.embedding_norm:
            self._embedding_norm = Norm(spec.norm, "embedding_norm", self._weights, kernels)
        self._lm_head = self._weights[head] if spec.ends and spec.has_head else None
        self._embedding_scale = None
        if spec.embedding_scale is not None:
            self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype, device=self.device)

    def join(self, collectives: Collectives, links: StageLinks | None = None) -> None:
        """See `Decoder.join`."""
        assert self.shard is not None, "the whole model is here"
        if self._joint is not None:
            self._joint.join(collectives)
        self._links = links

    @property
    def groups(self) -> LayerGroups:
        """See `Decoder.groups`."""
        return self._groups

    @groups.setter
    def groups(self, groups: LayerGroups) -> None:
        is_whole = self.shard is None or len(self._own_layers) == len(self.windows)
        self._groups, self._own_groups = groups, groups if is_whole else groups.part(self._own_layers)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[KVCache],
        wanted: Wanted | None = None,
        embedded: Embedded | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        if positions.dim() == 2:
            with self._axis_rotation.by(positions):
                own = torch.arange(len(token_ids), device=self.device)
                return self._forward(token_ids, own, batch, kv_caches, wanted, embedded, token_types)
        return self._forward(token_ids, positions, batch, kv_caches, wanted, embedded, token_types)

    def _forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[KVCache],
        wanted: Wanted | None,
        embedded: Embedded | None,
        token_types: Tensor | None,
    ) -> Tensor:
        residual: Tensor | None = None
        if self.spec.begins:
            hidden = self._embed(token_ids, positions, embedded, token_types)
        else:
            hidden, residual = self._receive(len(token_ids))
        tapped = []
        last = len(self._layers) - 1
        places = self._own_groups.in_order(batch.groups, kv_caches)
        if self.states is not None:
            places = self.states.between(places, batch, kv_caches, self.groups)
        if not self.spec.ends:
            wanted = None  # the next stage has layers that read all tokens
        if embedded is not None and embedded.images:
            places = look_within(embedded.images, places, self.windows)
        if not self.spec.is_causal:
            places = look_both_ways(places, self.windows)
            wanted = wanted_both_ways(wanted, self.windows[last])
        for index, (layer, (of_group, kv_cache)) in enumerate(zip(self._layers, places, strict=True)):
            if index in self.taps:
                stream = hidden.clone() if residual is None else hidden + residual
                tapped.extend([stream] * self.taps.count(index))
            of_this = wanted if index == last else None
            hidden, residual = layer.forward(hidden, residual, positions, of_group, kv_cache, of_this)
            if embedded is not None:
                embedded.add_after(index, hidden)
        self.tapped = torch.cat(tapped, dim=1) if tapped else None
        if not self.spec.ends:
            return self._pass_on(hidden, residual)
        return hidden if self._final_norm is None else self._final_norm.add(hidden, residual)[0]

    def pass_over(self, num_tokens: int) -> None:
        """See `Decoder.pass_over`."""
        self._receive(num_tokens)

    def _receive(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return what the layers of the stage before left of a step: hidden and residual, [T, hidden_size] each."""
        assert self._links is not None, "a stage computes once its group has met"
        stream = torch.empty(2, num_tokens, self.spec.hidden_size, dtype=self.dtype, device=self.device)
        self._links.receive(stream)
        hidden, residual = stream.unbind()
        return hidden, residual

    def _pass_on(self, hidden: Tensor, residual: Tensor | None) -> Tensor:
        """Give the next stage what the layers left, [T, hidden_size] each. Return hidden, which nobody reads here."""
        assert self._links is not None, "a stage computes once its group has met"
        assert residual is not None and residual.dtype == hidden.dtype, (
            "every decoder has a stream of its dtype"
        )
        self._links.send(torch.stack((hidden, residual)))
        return hidden

    def _embed(
        self, token_ids: Tensor, positions: Tensor, embedded: Embedded | None, token_types: Tensor | None
    ) -> Tensor:
        hidden = self._embed_ids(token_ids)
        if embedded is not None and self.spec.scales_given_embeddings:
            hidden[embedded.tokens] = embedded.rows[:, : self.spec.hidden_size]
        if self._embedding_scale is not None:
            hidden *= self._embedding_scale
        if embedded is not None and not self.spec.scales_given_embeddings:
            hidden[embedded.tokens] = embedded.rows[:, : self.spec.hidden_size]
        if self.spec.learned_positions:
            rows = positions + self.spec.position_offset if self.spec.position_offset else positions
            hidden += self.kernels.embed(rows, self._weights["position_embedding.weight"], self.dtype)
        if self.spec.num_token_types:
            types = self._weights["token_type_embedding.weight"]
            assert isinstance(types, Tensor), "rows so few are not quantised"
            hidden += types[0] if token_types is None else types[token_types]
        return hidden if self._embedding_norm is None else self._embedding_norm(hidden)

    def _embed_ids(self, token_ids: Tensor) -> Tensor:
        weight = self._weights["embedding.weight"]
        if self._joint is not None:
            return self._joint.embed(token_ids, weight, self.dtype, self.kernels)
        return self.kernels.embed(token_ids, weight, self.dtype)

    def logits(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor:
        """See `Decoder.logits`."""
        if not self.spec.ends:
            return hidden
        assert self._lm_head is not None, "a model without a head computes no logits"
        logits = self.kernels.logits(hidden, self._lm_head, needed)
        if self._joint is not None:
            logits = self._joint.gather_logits(logits)
        if not self._logits_are_shaped:
            return logits
        assert needed is None or needed.into is None, "what is there already would be shaped twice"
        if self.spec.logit_scale is not None:
            logits.mul_(self.spec.logit_scale)
        if self.spec.logit_softcap is not None:
            logits.div_(self.spec.logit_softcap).tanh_().mul_(self.spec.logit_softcap)
        return logits

    @property
    def head(self) -> LinearWeight | None:
        """See `Decoder.head`."""
        return None if self._logits_are_shaped else self._lm_head

    @property
    def _logits_are_shaped(self) -> bool:
        """Tell whether the logits are more than the product with the head."""
        return self.spec.logit_scale is not None or self.spec.logit_softcap is not None

    @property
    def kv_layout(self) -> KVLayout:
        """See `Decoder.kv_layout`."""
        return KVLayout.of(self.spec.attention, self._own_groups.layers_per_block, self.kv_dtype)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Decoder.kv_bytes_per_block`."""
        size = self.kv_layout.bytes_per_block(block_size)
        if self.states is not None and not self.groups.num_states:
            size += self.states.bytes_beside
        return size

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """See `Decoder.allocate_kv_caches`."""
        caches = self.kv_layout.allocate(num_blocks, block_size, self.device)
        if self.states is not None and not self.groups.num_states:
            caches += self.states.allocate_beside(num_blocks, self.device)
        return caches

    def weight(self, place: Place) -> LinearWeight:
        """Return the view of the weights that a checkpoint's tensor belongs in; see `view_of`."""
        weights = self._weights if place.layer is None else self._layer_weights[place.layer]
        return view_of(weights[place.name], place)

    def weights(self) -> Iterator[LinearWeight]:
        """Return all weights."""
        yield from self._weights.values()
        for weights in self._layer_weights:
            yield from weights.values()

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of the weights, [...] of any dtype, with the scales of those that are quantised."""
        for weight in self.weights():
            if isinstance(weight, QuantizedWeight):
                yield from (weight.values, weight.scales)
                if weight.lower is not None:
                    yield weight.lower
            elif isinstance(weight, TiledWeight):
                yield weight.tiles
            else:
                yield weight

    def forget(self) -> None:
        """See `Decoder.forget`."""
        self.tapped = None
        if self.states is not None:
            self.states.forget()

    @property
    def projections(self) -> dict[tuple[int, str], Projection]:
        """The linear maps of the layers that adapters may add to, by layer and module."""
        return {
            (index, module): projection
            for index, layer in enumerate(self._layers)
            for module, projection in layer.projections.items()
        }

    @property
    def embedding(self) -> LinearWeight:
        """[vocab_size, hidden_size], as the checkpoint has it."""
        return self._weights["embedding.weight"]

    @property
    def num_bytes(self) -> int:
        """See `Decoder.num_bytes`."""
        return sum(weight.nbytes for weight in self.weights())

    def _empty_layer(self, number: int, layer: LayerSpec) -> dict[str, LinearWeight]:
        parts = layer_parts(self.spec, layer).values()
        weights: dict[str, LinearWeight] = {}
        segments = 1 if self._joint is None else self._joint.segments
        for name, shape in layer_shapes(self.spec, layer).items():
            key, rows = (number, name), [part.rows for part in parts if name == f"{part.module}.weight"]
            names = [name]
            if segments > 1 and is_segmented(name, self._experts):
                shape, rows = segment_shape(name, shape, segments), [count // segments for count in rows]
                names = segment_names(name, segments)
            for one in names:
                weights[one] = self._empty_in_tiles(key, shape, rows) or self._empty(key, shape, rows)
            form = self._forms.get(key)
            if form is not None and form.order is not None:
                order = torch.from_numpy(form.order).to(self.device)
                weights[f"{name.removesuffix('.weight')}.order"] = order
        return weights

    def _empty_head(self, key: Key, shape: tuple[int, ...]) -> LinearWeight:
        liked = self.dtype in self.kernels.halves and not self._logits_are_shaped
        # Halves hold fewer codes than 8 bits do: a checkpoint's own would not all fit.
        can_be = key not in self._forms and self._bits(key) == 8 and shape[1] <= HALVED_INPUTS_MAX
        if liked and can_be and self._fits(shape, ()):
            return empty_quantized(shape, 8, self._pages, in_tiles=True, in_halves=True)
        return self._empty_in_tiles(key, shape, ()) or self._empty(key, shape)

    def _empty_in_tiles(self, key: Key, shape: tuple[int, ...], parts: Sequence[int]) -> TiledWeight | None:
        """Room for a matrix that is put together from so many rows each, if kernels like it in tiles.

        What has two dimensions in a layer is only ever multiplied, and so is the head, whose rows are embeddings too
        where they are tied.
        """
        if len(shape) != 2 or self.dtype not in self.kernels.tiled_dtypes or is_float32(self.spec, key[1]):
            return None
        if key[1] == "heads.weight":  # multiplied from both sides
            return None
        if self._bits(key) is not None or not self._fits(shape, parts):
            return None
        return empty_tiled((shape[0], shape[1]), self.dtype, self._pages)

    def _empty(self, key: Key, shape: tuple[int, ...], parts: Sequence[int] = ()) -> Weight:
        bits = self._bits(key)
        if bits is not None:
            in_tiles = self.dtype in self.kernels.quantized_tiles and self._fits(shape, parts)
            return empty_quantized(shape, bits, self._pages, in_tiles)
        dtype = torch.float32 if is_float32(self.spec, key[1]) else self.dtype
        return self._pages.empty(shape, dtype)

    def _bits(self, key: Key) -> Bits | None:
        """Bits of a weight; None is one in the decoder's dtype."""
        form = self._forms.get(key)
        if form is not None:
            return form.bits
        return quantized_bits(key[1], self._quantization, self._head_quantization)

    @staticmethod
    def _fits(shape: tuple[int, ...], parts: Sequence[int]) -> bool:
        """Tell whether a matrix, or a stack of them, that is put together from so many rows each can lie in tiles.

        A stack of experts also needs rows that would do for inputs, which in the other stack they are: so both are in
        tiles or neither.
        """
        rows = [shape[-2], *parts]
        is_stack = len(shape) == 3
        return fit_tiles(rows, shape[-1]) and (not is_stack or all(fit_tiles([], count) for count in rows))
