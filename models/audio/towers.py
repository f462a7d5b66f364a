"""Encoders of sounds: transformers' own modules, with a checkpoint's weights and without its decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pageant.models.audio.families import RATE
from pageant.models.checkpoint import Checkpoint
from pageant.models.tower_weights import fill_tower

__all__ = ["SpeechTower"]

Float32 = npt.NDArray[np.float32]


class SpeechTower:
    """The encoder of one checkpoint, with what makes features of samples.

    Args:
        window: frames that it encodes at a time.
        dtype: that it computes in.

    Raises:
        CheckpointError: its weights are missing, or of other shapes.
    """

    def __init__(
        self, checkpoint: Checkpoint, window: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        from transformers import AutoConfig, WhisperFeatureExtractor
        from transformers.initialization import no_init_weights
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        self.window, self.dtype, self.device = window, dtype, torch.device(device)
        config = AutoConfig.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
        config._attn_implementation = "sdpa"
        with no_init_weights():
            self._model: Any = nn.ModuleDict({"encoder": WhisperEncoder(config)})
        self._model.to(device=self.device, dtype=dtype).eval()
        fill_tower(self._model, checkpoint)
        self._extractor: Any = WhisperFeatureExtractor.from_pretrained(checkpoint.path, local_files_only=True)

    def features(self, samples: Float32) -> Float32:
        """Return the log-mel features of samples [samples]: float32 [bins, frames], at least a window of frames.

        The loudest sound of all counts for the whole, as with transformers.
        """
        fills = len(samples) < self._extractor.n_samples
        found = self._extractor(
            samples,
            sampling_rate=RATE,
            truncation=False,
            padding="max_length" if fills else "longest",
            return_tensors="np",
        )
        features: Float32 = found["input_features"][0].astype(np.float32, copy=False)
        return features

    @torch.inference_mode()
    def encode(self, window: Float32) -> Float32:
        """Return what is made of a window of features [bins, frames]: float32 [rows, hidden_size]."""
        values = torch.from_numpy(np.ascontiguousarray(window))[None].to(device=self.device, dtype=self.dtype)
        rows: Float32 = self._model["encoder"](values).last_hidden_state[0].float().cpu().numpy()
        return rows

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(one.nbytes for one in self._model.parameters())
