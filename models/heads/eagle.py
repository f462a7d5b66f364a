"""EAGLE's head: one decoder layer that goes on from the target's hidden states, token by token.

- EAGLE-1 (Li et al., 2024) reads, for each token, its embedding and the target's last hidden state of the token before,
  and its output goes through the target's own head.
- EAGLE-3 (Li et al., 2025) reads the inputs of three of the target's layers instead. It has a head of its own, often
  for part of the vocabulary: `d2t` says how far each of its tokens is from the target's.

Checkpoints are those of the authors: a Llama's config.json, tensors `fc` and `layers.0.*` for the one, and `fc`,
`midlayer.*`, `norm`, `lm_head`, `d2t` for the other.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, KVCache
from pageant.models.architectures.llama import ARCHITECTURE
from pageant.models.attention import Attention
from pageant.models.errors import CheckpointError
from pageant.models.heads.reading import HeadTensors
from pageant.models.kv_cache import KVLayout
from pageant.models.mlp import make_mlp
from pageant.models.native import NativeDecoder
from pageant.models.norm import Norm
from pageant.models.rotary import rotary_table
from pageant.models.spec import DecoderSpec, MLPSpec

__all__ = ["EagleHead"]

NUM_TAPS = 3


class EagleHead:
    """Head of one target.

    Args:
        path: the head's checkpoint.
        target: the model, of which the embedding and the head are read.
        num_layers: the model's.

    Raises:
        CheckpointError: the head in the folder is not for it.
    """

    def __init__(self, path: Path, target: NativeDecoder, num_layers: int, max_model_len: int) -> None:
        tensors = HeadTensors(path, target.dtype, target.device)
        tensors.rename({"model.": "", "layers.0.": "layer.", "midlayer.": "layer."})
        tensors.drop("t2d", "rotary_emb.inv_freq")
        spec = ARCHITECTURE.spec(tensors.config)
        _check(path, spec, target)
        self.target, self.spec, self.kernels = target, spec, target.kernels
        self.reads_layers = "layer.hidden_norm.weight" in tensors  # EAGLE-3
        self.taps = _taps(tensors, num_layers) if self.reads_layers else ()
        weights = self._take(tensors, NUM_TAPS if self.reads_layers else 2)
        rope = spec.layers[0].rope
        rotary = None if rope is None else rotary_table(rope, max_model_len, target.device)
        self._attention = Attention(spec, None, rotary, weights, self.kernels)
        self._mlp = make_mlp(spec.layers[0], weights, self.kernels)
        self._norms = {
            name: Norm(spec.norm, name, weights, self.kernels)
            for name in ("post_attention_norm", "input_norm", "hidden_norm", "final_norm")
            if f"{name}.weight" in weights
        }
        self._weights = weights
        tensors.finish()

    def _take(self, tensors: HeadTensors, num_read: int) -> dict[str, Tensor]:
        size, attention, mlp = self.spec.hidden_size, self.spec.attention, self.spec.layers[0].mlp
        assert isinstance(mlp, MLPSpec), "a Llama has no experts"
        width = 2 * size if self.reads_layers else size
        weights = {"fc.weight": tensors.take("fc.weight", size, num_read * size)}
        if "fc.bias" in tensors:
            weights["fc.bias"] = tensors.take("fc.bias", size)
        parts = {"q": attention.query_size, "k": attention.kv_size, "v": attention.kv_size}
        weights["qkv.weight"] = torch.cat(
            [tensors.take(f"layer.self_attn.{part}_proj.weight", rows, width) for part, rows in parts.items()]
        )
        if attention.qkv_bias:
            weights["qkv.bias"] = torch.cat(
                [tensors.take(f"layer.self_attn.{part}_proj.bias", rows) for part, rows in parts.items()]
            )
        weights["o.weight"] = tensors.take("layer.self_attn.o_proj.weight", size, attention.query_size)
        if attention.o_bias:
            weights["o.bias"] = tensors.take("layer.self_attn.o_proj.bias", size)
        weights["gate_up.weight"] = torch.cat(
            [tensors.take(f"layer.mlp.{part}_proj.weight", mlp.size, size) for part in ("gate", "up")]
        )
        weights["down.weight"] = tensors.take("layer.mlp.down_proj.weight", size, mlp.size)
        norms = {"post_attention_norm": "layer.post_attention_layernorm"}
        if self.reads_layers:
            norms |= {"input_norm": "layer.input_layernorm", "hidden_norm": "layer.hidden_norm"}
            norms["final_norm"] = "norm"
        for name, theirs in norms.items():
            weights[f"{name}.weight"] = tensors.take(f"{theirs}.weight", size)
        self._embedding = None
        if "embed_tokens.weight" in tensors:
            self._embedding = tensors.take("embed_tokens.weight", self.target.spec.vocab_size, size)
        self._take_vocabulary(tensors)
        return weights

    def _take_vocabulary(self, tensors: HeadTensors) -> None:
        """The head, and which of the target's tokens its rows are; None is the target's own, and all of them."""
        self._head: Tensor | None = None
        self._tokens: Tensor | None = None
        vocab_size = self.target.spec.vocab_size
        if not self.reads_layers:
            tensors.drop("lm_head.weight")
            return
        rows = tensors.config.count("draft_vocab_size", vocab_size)
        self._head = tensors.take("lm_head.weight", rows, self.spec.hidden_size)
        if "d2t" in tensors:
            offsets = tensors.take_raw("d2t", rows).to(self.target.device, torch.int64)
            self._tokens = torch.arange(rows, device=self.target.device) + offsets
            if not bool(((self._tokens >= 0) & (self._tokens < vocab_size)).all()):
                raise CheckpointError(
                    tensors.path,
                    "d2t names tokens beyond the model's",
                    f"tokens below {vocab_size}",
                    "Check it.",
                )

    def first_hidden(self, hidden: Tensor, tapped: Tensor | None) -> Tensor:
        """Return what the head reads of the target: [T, hidden_size], in the target's dtype."""
        if not self.reads_layers:
            return hidden
        assert tapped is not None, "the target was asked for its layers' inputs"
        return self.kernels.linear(tapped, self._weights["fc.weight"], self._weights.get("fc.bias"))

    def advance(
        self, token_ids: Tensor, hidden: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """Return hidden states [T, hidden_size], given those before each token, in the target's dtype.

        Mutates the cache at the batch's slots.
        """
        kernels, norms = self.kernels, self._norms
        embedding = self.target.embedding if self._embedding is None else self._embedding
        embedded = kernels.embed(token_ids, embedding, self.target.dtype)
        if self.reads_layers:
            stream = hidden
            read = torch.cat([norms["input_norm"](embedded), norms["hidden_norm"](hidden)], dim=1)
        else:
            both = torch.cat([embedded, hidden], dim=1)
            stream = read = kernels.linear(both, self._weights["fc.weight"], self._weights.get("fc.bias"))
        attended = self._attention(read, positions, batch, cache)
        normed, stream = norms["post_attention_norm"].add(attended, stream.clone())
        return self._mlp(normed) + stream

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [R, the target's vocab_size] for hidden states [R, hidden_size]; minus infinity for tokens
        that the head does not know."""
        if self._head is None:
            return self.target.logits(hidden)
        found = self.kernels.logits(self._norms["final_norm"](hidden), self._head)
        if self._tokens is None:
            return found
        logits = found.new_full((len(found), self.target.spec.vocab_size), float("-inf"))
        logits[:, self._tokens] = found
        return logits

    @property
    def kv_layout(self) -> KVLayout:
        """Sizes of the one layer's KV cache, in the target's format."""
        attention = self.spec.attention
        return KVLayout(1, attention.num_kv_heads, attention.head_dim, self.target.kv_dtype)

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Return the one layer's, zeroed."""
        return self.kv_layout.allocate(num_blocks, block_size, self.target.device)


def _check(path: Path, spec: DecoderSpec, target: NativeDecoder) -> None:
    remedy = "Check that the head was made for this model."
    sizes = {
        "hidden_size": (spec.hidden_size, target.spec.hidden_size),
        "vocab_size": (spec.vocab_size, target.spec.vocab_size),
        "num_hidden_layers": (spec.num_layers, 1),
    }
    for name, (found, expected) in sizes.items():
        if found != expected:
            raise CheckpointError(path / "config.json", f"{name} is {found}", str(expected), remedy)


def _taps(tensors: HeadTensors, num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads: as its config says, or those that its authors chose."""
    key = "eagle_aux_hidden_state_layer_ids"
    section = tensors.config.section("eagle_config")
    taps = section.counts(key) or tensors.config.counts(key) or (2, num_layers // 2, num_layers - 3)
    if len(taps) != NUM_TAPS or not all(0 <= layer < num_layers for layer in taps):
        raise CheckpointError(
            tensors.path,
            f"{key} is {list(taps)}",
            f"{NUM_TAPS} layers below {num_layers}",
            "Correct config.json.",
        )
    return taps
