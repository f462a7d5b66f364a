"""A checkpoint's own layer that drafts (multi-token prediction), beside the model that it drafts for.

It guesses further tokens from hidden states of its own, after its norm, which stand for the model's: so do vLLM and
SGLang where a checkpoint has one such layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, KVCache, NeededLogits
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.loading import fill_decoder
from pageant.models.mtp import MTPWeights, find_mtp
from pageant.models.native import NativeDecoder
from pageant.models.norm import Norm
from pageant.models.projection import Projection
from pageant.models.quantization import Quantization

__all__ = ["MTPLayer", "load_mtp_layer"]


class MTPLayer(NativeDecoder):
    """A decoder of that layer alone, with embedding and head of its target. Weights are filled by whoever makes it."""

    def __init__(
        self,
        found: MTPWeights,
        target: NativeDecoder,
        max_model_len: int,
        quantization: Quantization | None = None,
    ) -> None:
        forms = None if found.ready is None else found.ready.forms
        super().__init__(
            *(found.spec, target.dtype, target.device, target.kernels, max_model_len, quantization),
            forms=forms,
        )
        self.kv_dtype = target.kv_dtype
        self._target = target
        self._token_norm, self._hidden_norm = (
            Norm(self.spec.norm, name, self._weights, self.kernels) for name in ("token_norm", "hidden_norm")
        )
        self._join = Projection("join", self._weights, self.kernels)

    def first_hidden(self, hidden: Tensor, tapped: Tensor | None) -> Tensor:
        """Return what the layer reads of the target: hidden [T, hidden_size], in the target's dtype."""
        return hidden

    def advance(
        self, token_ids: Tensor, hidden: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """Return hidden states [T, hidden_size], given those before each token, in the target's dtype.

        Mutates the cache at the batch's slots.
        """
        embedded = self.kernels.embed(token_ids, self._target.embedding, self.dtype)
        both = torch.cat([self._token_norm(embedded), self._hidden_norm(hidden)], dim=1)
        (layer,) = self._layers
        assert self._final_norm is not None, "no such layer has a norm over the sum"
        added, stream = layer.forward(self._join(both), None, positions, batch, cache, None)
        return self._final_norm.add(added, stream)[0]

    def logits(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor:
        """See `Decoder.logits`."""
        return self._target.logits(hidden, needed)


def load_mtp_layer(
    checkpoint: Checkpoint,
    target: NativeDecoder,
    max_model_len: int,
    quantization: Quantization | None = None,
) -> MTPLayer:
    """Return the layer of a checkpoint that drafts for a target.

    Args:
        checkpoint: the target's own, or another with such a layer.
        quantization: see `load_decoder`.

    Raises:
        CheckpointError: there is no such layer, or it is for another model.
    """
    found = find_mtp(checkpoint)
    sizes = {
        "hidden_size": (found.spec.hidden_size, target.spec.hidden_size),
        "vocab_size": (found.spec.vocab_size, target.spec.vocab_size),
    }
    for name, (theirs, expected) in sizes.items():
        if theirs != expected:
            raise CheckpointError(
                checkpoint.path / "config.json",
                f"{name} is {theirs}",
                str(expected),
                "Leave speculation.model out, or name a checkpoint of this model.",
            )
    checkpoint.refuse_quantization(quantization)
    layer = MTPLayer(found, target, max_model_len, quantization)
    fill_decoder(layer, found, found.places, found.spec)
    return layer
