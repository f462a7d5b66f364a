"""The decoder: token ids in, hidden states and logits out, with the KV cache in pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.layers import DecoderLayer, LayerWeights, rotary_table
from pageant.models.spec import DecoderSpec
from pageant.models.weights import Place, layer_shapes, model_shapes

__all__ = ["Decoder"]


class Decoder:
    """A model's weights on one device, and its forward pass. Call it under `torch.inference_mode`.

    Weights are allocated and left as they are found in memory: `pageant.models.loading` fills them.
    """

    def __init__(
        self, spec: DecoderSpec, dtype: torch.dtype, device: torch.device | str, kernels: Kernels
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.kernels = kernels
        self._weights = self._allocate(model_shapes(spec))
        self._lm_head = self._weights.get("lm_head", self._weights["embedding"])
        self._layers = [
            DecoderLayer(spec, window, LayerWeights(**self._allocate(layer_shapes(spec))), kernels)
            for window in spec.layer_windows
        ]
        self._rotary = rotary_table(spec.rope, spec.head_dim, spec.max_model_len, self.device)

    def forward(
        self, token_ids: Tensor, positions: Tensor, batch: AttentionBatch, kv_caches: Sequence[KVCache]
    ) -> Tensor:
        """Return [T, hidden_size], after the final norm, for token_ids and positions int64 [T].

        Positions are below the spec's max_model_len. Mutates each layer's cache at the batch's slots.
        """
        hidden, residual = F.embedding(token_ids, self._weights["embedding"]), None
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            hidden, residual = layer.forward(hidden, residual, self._rotary, positions, batch, kv_cache)
        assert residual is not None, "a decoder has at least one layer"
        norm = self._weights["final_norm"]
        return self.kernels.add_rms_norm(hidden, residual, norm, self.spec.rms_norm_eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [R, vocab_size] for rows of hidden states [R, hidden_size]."""
        return self.kernels.linear(hidden, self._lm_head).float()

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """The shape of one layer's keys, and of its values."""
        return num_blocks, self.spec.num_kv_heads, block_size, self.spec.head_dim

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block takes in all layers together, keys and values."""
        _, num_kv_heads, _, head_dim = self.kv_cache_shape(1, block_size)
        return 2 * self.spec.num_layers * num_kv_heads * block_size * head_dim * self.dtype.itemsize

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Return zeroed caches, one (keys, values) per layer."""
        shape = self.kv_cache_shape(num_blocks, block_size)
        return [
            (
                torch.zeros(shape, dtype=self.dtype, device=self.device),
                torch.zeros(shape, dtype=self.dtype, device=self.device),
            )
            for _ in range(self.spec.num_layers)
        ]

    def weight(self, place: Place) -> Tensor:
        """Return the view of the weights that a checkpoint's tensor belongs in, of the place's shape."""
        if place.layer is None:
            whole = self._weights[place.name]
        else:
            whole = getattr(self._layers[place.layer].weights, place.name)
        return whole[place.row : place.row + place.shape[0]]

    @property
    def num_bytes(self) -> int:
        """Bytes that the weights take."""
        per_layer = [tensor for layer in self._layers for tensor in vars(layer.weights).values()]
        return sum(tensor.nbytes for tensor in (*self._weights.values(), *per_layer) if tensor is not None)

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {
            name: torch.empty(shape, dtype=self.dtype, device=self.device) for name, shape in shapes.items()
        }
