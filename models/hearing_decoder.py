"""The decoder of models whose tokens attend to the rows of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from pageant.kernels.base import AttentionBatch
from pageant.models.encoder_attention import Encoded, EncoderMemory, Watched
from pageant.models.native import NativeDecoder

__all__ = ["HearingDecoder"]


class HearingDecoder(NativeDecoder):
    """A `NativeDecoder` with keys and values of encoders' rows, one encoder for each row of the batch."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._memory: EncoderMemory | None = None
        self.watched: Sequence[Watched] = ()
        """Tokens of the next step whose weights of attention to encoders' rows are kept."""
        for weights in self._layer_weights:
            for name in ("qkv.bias", "encoder_kv.bias"):
                bias = weights[name]
                assert isinstance(bias, Tensor), "biases are not quantised"
                bias.zero_()  # parts that a checkpoint has no biases of are not filled

    def encoder_bytes(self, max_num_seqs: int) -> int:
        """Return the bytes that the encoders of so many rows of the batch take."""
        return max_num_seqs * EncoderMemory.bytes_per_row(self.spec, self.dtype)

    def allocate_encoder_memory(self, max_num_seqs: int) -> None:
        """Take memory for the encoders of so many rows of the batch."""
        self._memory = EncoderMemory(self.spec, self.dtype, max_num_seqs, self.device)

    def attending(self, encoded: Encoded, batch: AttentionBatch) -> AbstractContextManager[None]:
        """Let the tokens of a step attend to their sequences' encoders within the context."""
        assert self._memory is not None, "there is memory before anything is computed"
        layers = [layer.to_encoder for layer in self._layers if layer.to_encoder is not None]
        return self._memory.attending(layers, encoded, batch, self.watched)

    def forget(self) -> None:
        """See `Decoder.forget`."""
        super().forget()
        self._memory, self.watched = None, ()
