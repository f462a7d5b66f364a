"""Attention function for models of transformers, and what is learnt of a model from how it calls it.

transformers calls `attend(module, query, key, value, mask, ...)` with the options that the model has.
`plug_in` hangs on each module what is to answer: a `Discovery`, or a `PagedStep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pageant.kernels.base import AttentionBatch, Kernels, KVCache

__all__ = ["NAME", "Discovery", "LayerFacts", "PagedStep", "Unsupported", "attend", "plug_in"]

NAME = "pageant"
_HARMLESS = {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits"}
_STATEFUL_ROPES = {"longrope"}  # "dynamic" begins where the positions that are served end
_KINDS = {"full_attention", "sliding_attention"}


class Unsupported(Exception):
    """Error of a model that wants of its attention what ours does not do."""


@dataclass(frozen=True, eq=False, slots=True)
class Options:
    """Options of one call: how it wants its scores."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None = None
    """[H] in the model's dtype: see `Kernels.paged_attention`."""


class _Answerer(Protocol):
    def answer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Return [T, H, D] for query [T, H, D], key and value [T, Hkv, D]."""
        ...


def plug_in(model: nn.Module, answerer: _Answerer) -> None:
    """Let `answerer` answer all attention of the model from now on. Mutates its modules."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.pageant = answerer  # type: ignore[assignment]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: query [1, H, T, D], key and value [1, Hkv, T, D], in the model's dtype.

    Returns [1, T, H, D] of that dtype. Raises Unsupported for options that it does not know.
    """
    unknown = [name for name, wanted in others.items() if wanted is not None and name not in _HARMLESS]
    if unknown or attention_mask is not None:
        raise Unsupported(f"its attention wants {', '.join(unknown) or 'a mask of its own'}")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise Unsupported("its attention is not causal")
    options = Options(scaling or query.shape[-1] ** -0.5, sliding_window or None, softcap, s_aux)
    packed = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    answerer: Any = module.pageant
    return answerer.answer(module.layer_idx, *packed, options)[None], None


class PagedStep:
    """Answers with attention over the pages of the step that is set."""

    layers: Sequence[tuple[AttentionBatch, KVCache]]
    """Of each, where its tokens stand, and what is cached."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def answer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Return [T, H, D] for query [T, H, D], key and value [T, Hkv, D], all of the model's dtype.

        Mutates the layer's cache at the batch's slots.
        """
        batch, cache = self.layers[layer]
        self._kernels.write_kv(key, value, *cache, batch.slots)
        sinks = None if options.sinks is None else options.sinks.float()
        return self._kernels.paged_attention(
            query, *cache, batch, options.scale, options.window, options.softcap, sinks
        )


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Facts of a layer that the KV cache needs."""

    windows: tuple[int | None, ...]
    """Each layer's."""
    num_kv_heads: int
    head_dim: int


class Discovery:
    """Answers with zeros, and remembers who asked for what."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, torch.Size, torch.Size, Options]] = []

    def answer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Return zeros [T, H, D] for query [T, H, D], key and value [T, Hkv, D], all of the model's dtype."""
        self.calls.append((layer, key.shape[1:], value.shape[1:], options))
        return query.new_zeros(*query.shape[:2], value.shape[-1])

    @classmethod
    def of(cls, model: PreTrainedModel) -> LayerFacts:
        """Run one token through the model, and return what its layers have in common.

        Raises Unsupported saying what about its attention cannot be done in pages.
        """
        discovery, config = cls(), model.config.get_text_config()
        plug_in(model, discovery)
        _refuse_by_configuration(config)
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        model.base_model(input_ids=token, position_ids=token, use_cache=False)
        return discovery._facts(config)

    def _facts(self, config: PretrainedConfig) -> LayerFacts:
        num_layers = config.num_hidden_layers
        if [layer for layer, *_ in self.calls] != list(range(num_layers)):
            raise Unsupported(f"its {num_layers} layers do not call attention once each, in order")
        shapes = {shape for _, key, value, _ in self.calls for shape in (key, value)}
        if len(shapes) != 1:
            raise Unsupported("its layers have keys and values of different sizes")
        windows = [options.window for *_, options in self.calls]
        if windows != _expected_windows(config):
            raise Unsupported(f"its attention is not told of its windows (it says {windows[:4]}...)")
        num_kv_heads, head_dim = shapes.pop()
        return LayerFacts(tuple(windows), num_kv_heads, head_dim)


def _refuse_by_configuration(config: PretrainedConfig) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - _KINDS
    if kinds:
        raise Unsupported(f"it has layers of {', '.join(sorted(kinds))}")
    ropes = _STATEFUL_ROPES & _rope_types(getattr(config, "rope_parameters", None))
    if ropes:
        raise Unsupported(f"its rotary scaling, {', '.join(sorted(ropes))}, depends on the longest sequence")


def _rope_types(parameters: object) -> set[str]:
    """The rotary types in a configuration's rope_parameters, whether for all layers or for kinds of them."""
    if not isinstance(parameters, dict):
        return set()
    nested = (_rope_types(value) for value in parameters.values())
    return set().union({str(parameters.get("rope_type"))}, *nested)


def _expected_windows(config: PretrainedConfig) -> list[int | None]:
    """Each layer's window by the configuration."""
    window = getattr(config, "sliding_window", None) or None
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]
