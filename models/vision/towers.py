"""Vision towers: transformers' own modules, with a checkpoint's weights and without its decoder."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.models.checkpoint import Checkpoint
from pageant.models.tower_weights import fill_tower
from pageant.models.vision.families import VisionSpec
from pageant.models.vision.processing import normalised

__all__ = ["VisionTower"]

_OLDER = {"vision_tower.": "vision_tower.vision_model."}
"""Beginnings of names here, with those that older checkpoints have."""


class VisionTower:
    """The tower of one checkpoint, with what projects its outputs to the width of the decoder.

    Args:
        spec: of the checkpoint.
        dtype: that it computes in.

    Raises:
        CheckpointError: its weights are missing, or of other shapes.
    """

    def __init__(
        self, checkpoint: Checkpoint, spec: VisionSpec, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.spec, self.dtype, self.device = spec, dtype, torch.device(device)
        self._model: Any = _without_decoder(checkpoint, spec).to(device=self.device, dtype=dtype).eval()
        fill_tower(self._model, checkpoint, _OLDER)

    @torch.inference_mode()
    def encode(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the embeddings of an image of pixels [height, width, 3]: float32 [tokens, width].

        The width is the hidden size, times one more than the layers that images are added to.
        """
        values = torch.from_numpy(normalised(pixels, self.spec.processing))
        height, width = values.shape[1:]
        if self.spec.patch:
            return self._encode_patches(values.expand(self.spec.frames, -1, -1, -1))
        given: dict[str, Any] = {}
        if self.spec.processing.kind == "longest":
            given["image_sizes"] = torch.tensor([[height, width]], device=self.device)
        return self._encode(values[None], given)

    @torch.inference_mode()
    def encode_video(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the embeddings of a video's frames [frames, height, width, 3], as `encode` does of an image's.

        The last frame is repeated to fill a patch in time.
        """
        assert self.spec.video is not None, "the model sees videos"
        processing = self.spec.video.processing
        count, height, width, _ = pixels.shape
        padded = -(-count // processing.step) * processing.step
        values = torch.empty((padded, 3, height, width))
        for index in range(padded):  # one at a time: the arithmetic takes several times a frame's memory
            values[index] = torch.from_numpy(normalised(pixels[min(index, count - 1)], processing.frame))
        return self._encode_patches(values)

    def _encode_patches(self, values: Tensor) -> npt.NDArray[np.float32]:
        """Return the embeddings of frames [frames, 3, height, width], which fill patches in time."""
        frames, _, height, width = values.shape
        patch, step = self.spec.patch, self.spec.frames
        grid = torch.tensor([[frames // step, height // patch, width // patch]], device=self.device)
        patches = _patches(values, patch, self.spec.merge, step)
        return self._encode(patches, {"image_grid_thw": grid})

    def _encode(self, values: Tensor, given: dict[str, Any]) -> npt.NDArray[np.float32]:
        values = values.to(device=self.device, dtype=self.dtype)
        found = self._model.get_image_features(pixel_values=values, **given)
        rows = [_joined(found.pooler_output)]
        if self.spec.layers_added:
            rows += [_joined(one) for one in found.deepstack_features]
        return torch.cat(rows, dim=-1).float().cpu().numpy()

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(one.nbytes for one in self._model.parameters())


def _joined(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return features of one image, [tokens, hidden_size]."""
    whole = features if isinstance(features, Tensor) else torch.cat([one.flatten(0, -2) for one in features])
    return whole.flatten(0, -2)


def _patches(values: Tensor, patch: int, merge: int, step: int) -> Tensor:
    """Return patches of frames [frames, 3, height, width] as rows, those of one token next to each other.

    Each row is [3 * step * patch * patch], of so many frames.
    """
    frames, channels, height, width = values.shape
    rows, columns = height // patch, width // patch
    split = values.reshape(
        frames // step, step, channels, rows // merge, merge, patch, columns // merge, merge, patch
    )
    ordered = split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(frames // step * rows * columns, channels * step * patch * patch)


def _without_decoder(checkpoint: Checkpoint, spec: VisionSpec) -> Any:
    """Return transformers' model with a decoder of no layers and one token; its weights mean nothing yet."""
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    config = AutoConfig.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
    config = copy.deepcopy(config)
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if hasattr(text, "layer_types"):
        text.layer_types = []
    with no_init_weights():
        model = AutoModel.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    del model.language_model
    return model
