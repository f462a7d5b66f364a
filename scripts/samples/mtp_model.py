"""Models with a layer that drafts (multi-token prediction), in plain torch on transformers' classes.

transformers leaves that layer out. Its decoder layer and its last norm are those of a model of the same family with one
layer.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

__all__ = ["MTPModel", "train"]

_WEIGHTS = "model.safetensors"


class MTPModel(nn.Module):
    """A model of transformers and a layer that drafts for it: GLM-4.5, DeepSeek-V3, Qwen3-Next or Qwen3.5.

    Args:
        model: with random or trained weights. Its weights are this module's, too.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = 1
        for name, value in {"first_k_dense_replace": 0, "mlp_only_layers": []}.items():
            if hasattr(config, name):
                setattr(config, name, value)
        if getattr(config, "layer_types", None):
            config.layer_types = ["full_attention"]
        self.model, self.layer = model, type(model)(config)
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.token_norm, self.hidden_norm = (copy.deepcopy(self.layer.model.norm) for _ in range(2))

    def hidden(self, token_ids: Tensor) -> Tensor:
        """Return the model's hidden states, float32 [rows, tokens, width], for int64 [rows, tokens]."""
        return self.model.model(input_ids=token_ids, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def advance(self, following: Tensor, hidden: Tensor) -> Tensor:
        """Return the layer's hidden states, float32 [rows, tokens, width].

        Args:
            following: int64 [rows, tokens], the token behind each.
            hidden: float32 [rows, tokens, width], the model's hidden states, or the layer's own.
        """
        embedded = self.token_norm(self.model.get_input_embeddings()(following))
        joined = self.join(torch.cat([embedded, self.hidden_norm(hidden)], dim=-1))
        return self.layer.model(inputs_embeds=joined, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [rows, tokens, vocab_size] for hidden states of the model or of the layer."""
        return self.model.lm_head(hidden)  # type: ignore[no-any-return]

    def save(self, folder: Path) -> None:
        """Write a checkpoint as the family's authors lay it out."""
        self.model.save_pretrained(folder)
        with tempfile.TemporaryDirectory() as beside:
            self.layer.save_pretrained(beside)
            layer = load_file(Path(beside) / _WEIGHTS)
        tensors = load_file(folder / _WEIGHTS)
        drafting = dict(self._named(layer, tensors))
        save_file(
            {name: tensor.detach().contiguous() for name, tensor in (tensors | drafting).items()},
            folder / _WEIGHTS,
            metadata={"format": "pt"},
        )
        path = folder / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}, indent=2))

    def _named(self, layer: dict[str, Tensor], tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the layer's tensors by their names in a checkpoint, given its one-layer model's and the model's own."""
        first, norm = "model.layers.0.", "model.norm.weight"
        if type(self.model).__name__.startswith("Qwen"):
            prefix, own = "mtp.layers.0.", "mtp."
            names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        else:
            prefix = own = f"model.layers.{self.model.config.num_hidden_layers}."
            names = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
            embedding = tensors["model.embed_tokens.weight"]
            yield f"{own}embed_tokens.weight", embedding.clone()
            yield f"{own}shared_head.head.weight", tensors.get("lm_head.weight", embedding).clone()
        for name, tensor in layer.items():
            if name.startswith(first):
                yield prefix + name.removeprefix(first), tensor
        own_tensors = (self.join.weight, self.token_norm.weight, self.hidden_norm.weight, layer[norm])
        for name, tensor in zip(names, own_tensors, strict=True):
            yield f"{own}{name}.weight", tensor


def train(mtp: MTPModel, rows: Iterable[Tensor], *, steps: int, rate: float, further: int = 1) -> list[float]:
    """Train a model and its layer together, in place.

    Args:
        rows: a batch of int64 [rows, tokens] for each step.
        rate: of learning, at its highest; it warms up over a tenth of the steps, and falls to nothing.
        further: how often the layer goes on from hidden states of its own, behind its first guess.

    Returns:
        The losses of the last step, in nats a token: the model's, and that of each of the layer's guesses.
    """
    optimizer = torch.optim.AdamW(mtp.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    losses: list[Tensor] = []
    for step, token_ids in zip(range(steps), rows, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / max(1, steps // 10), 1.0) * (1 - step / steps)
        losses = list(_losses(mtp, token_ids, further))
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).sum())
        torch.nn.utils.clip_grad_norm_(mtp.parameters(), 1.0)
        optimizer.step()
    return [loss.item() for loss in losses]


def _losses(mtp: MTPModel, token_ids: Tensor, further: int) -> Iterator[Tensor]:
    """Yield the model's loss, then that of each of the layer's guesses: float32 scalars."""
    hidden = mtp.hidden(token_ids)
    yield _loss(mtp.logits(hidden), token_ids, 1)
    for ahead in range(1, 2 + further):
        following = functional.pad(token_ids[:, ahead:], (0, ahead))  # the last ones have no label
        hidden = mtp.advance(following, hidden)
        yield _loss(mtp.logits(hidden), token_ids, 1 + ahead)


def _loss(logits: Tensor, token_ids: Tensor, ahead: int) -> Tensor:
    """Return the cross entropy of logits float32 [rows, tokens, V] and tokens so far ahead, a float32 scalar []."""
    return functional.cross_entropy(logits[:, :-ahead].flatten(0, 1), token_ids[:, ahead:].flatten())
