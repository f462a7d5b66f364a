"""The layers that follow pooling, computed in float32 as sentence-transformers and transformers do."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from pageant.models.pooling.spec import Affine, Normalise, PoolingSpec, Step
from pageant.models.tensor_files import TensorInfo

__all__ = ["Pooler"]

_Layer = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, _Layer] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


class Pooler:
    """Makes embeddings or scores of pooled hidden states. Its weights are loaded when it is made."""

    def __init__(self, spec: PoolingSpec, device: torch.device) -> None:
        self.spec = spec
        self.device = device
        self._weights: list[Tensor] = []
        self._layers = [self._layer(step) for step in spec.steps]

    @property
    def num_bytes(self) -> int:
        """Bytes that the weights take."""
        return sum(weight.nbytes for weight in self._weights)

    def __call__(self, pooled: Tensor) -> Tensor:
        """Return float32 [R, size], embeddings before they are normalised or logits, for float32 [R, hidden_size]."""
        for layer in self._layers:
            pooled = layer(pooled)
        return pooled

    def finish(self, vectors: Tensor, *, dimensions: int | None, activates: bool | None) -> Tensor:
        """Return results of which a request says how it wants them.

        Args:
            vectors: float32 [R, size], as a call returns.
            dimensions: the width to cut embeddings to; None is all.
            activates: whether embeddings are normalised, or logits made scores; None is as the model has it.
        """
        spec = self.spec
        if spec.task == "embed":
            cut = vectors if dimensions is None else vectors[:, :dimensions]
            return F.normalize(cut, dim=-1) if (spec.normalises if activates is None else activates) else cut
        if activates is False or spec.scores == "identity":
            return vectors
        return torch.sigmoid(vectors) if spec.scores == "sigmoid" else torch.softmax(vectors, dim=-1)

    def _layer(self, step: Step) -> _Layer:
        if isinstance(step, Normalise):
            return lambda x: F.normalize(x, dim=-1)
        bias = None if step.bias is None else self._load(step.bias)
        if isinstance(step, Affine):
            weight = self._load(step.weight, step.rows)
            if step.first_less_second:
                weight = weight[:1] - weight[1:]
            activation = _ACTIVATIONS.get(step.activation)
            if activation is None:
                return lambda x: F.linear(x, weight, bias)
            return lambda x: activation(F.linear(x, weight, bias))
        scale, eps = self._load(step.weight), step.eps
        return lambda x: F.layer_norm(x, scale.shape, scale, bias, eps)

    def _load(self, info: TensorInfo, rows: tuple[int, ...] | None = None) -> Tensor:
        with safe_open(info.file, framework="pt") as tensors:
            if rows is None:
                read = tensors.get_tensor(info.name)
            else:
                whole = tensors.get_slice(info.name)
                read = torch.cat([whole[row : row + 1] for row in rows])
        weight: Tensor = read.to(self.device, torch.float32)
        self._weights.append(weight)
        return weight
