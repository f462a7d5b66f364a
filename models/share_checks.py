"""Checks whether a model can be shared out over ranks and stages: why not, with the arithmetic and what would do.

Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from pageant.models.checkpoint import Checkpoint
from pageant.models.sharding import INPUTS, ExpertSharing, is_segmented
from pageant.models.spec import DecoderSpec, MoESpec
from pageant.models.stages import objection_to_stages

__all__ = ["has_experts", "objection_to", "why_not_shared", "why_not_staged"]


def has_experts(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint has layers with experts; of one that transformers runs, nobody knows."""
    if checkpoint.architecture is None:
        return False
    return any(isinstance(layer.mlp, MoESpec) for layer in checkpoint.decoder_spec().layers)


def why_not_shared(
    checkpoint: Checkpoint, ranks: int, segments: int | None = None, experts: ExpertSharing = "cut"
) -> str:
    """Return why a checkpoint cannot be shared out over so many ranks, with what would do; "" if it can.

    Args:
        segments, experts: see `Shard`.
    """
    if objection := _objection_to_kind(checkpoint):
        return objection
    spec = checkpoint.decoder_spec()
    return objection_to(spec, ranks, segments, experts) or _scattered_inputs(checkpoint, experts)


def why_not_staged(checkpoint: Checkpoint, stages: int, layers_of_each: tuple[int, ...] | None = None) -> str:
    """Return why a checkpoint cannot be divided over so many stages, with what would do; "" if it can.

    Args:
        layers_of_each: see `Stage`.
    """
    if objection := _objection_to_kind(checkpoint):
        return objection
    return objection_to_stages(checkpoint.decoder_spec().num_layers, stages, layers_of_each)


def _objection_to_kind(checkpoint: Checkpoint) -> str:
    """Return why no checkpoint of this kind is computed by several ranks; "" if it can be."""
    if checkpoint.architecture is None:
        names = checkpoint.config.get("architectures") or ["?"]
        return f"{names[0]} runs on transformers' own code, which is whole; expected 1"
    if checkpoint.decoder_spec().is_recurrent:
        return "models with recurrent layers are not shared out in this version; expected 1"
    if checkpoint.pooling is not None:
        return "models whose hidden states are pooled are not shared out in this version; expected 1"
    return ""


def _scattered_inputs(checkpoint: Checkpoint, experts: ExpertSharing) -> str:
    """Return which quantised weight cannot be cut by its inputs, since their groups are scattered; "" if none."""
    forms = {} if checkpoint.ready is None else checkpoint.ready.forms
    for (layer, name), form in forms.items():
        if form.order is not None and is_segmented(name, experts):
            return (
                f"layer {layer}'s {name} has groups of inputs that are scattered over all of them (act-order); "
                "expected 1, or a checkpoint without act-order"
            )
    return ""


def objection_to(
    spec: DecoderSpec, ranks: int, segments: int | None = None, experts: ExpertSharing = "cut"
) -> str:
    """Return why a model cannot be shared out over so many ranks, with what would do; "" if it can.

    Args:
        segments, experts: see `Shard`.
    """
    if objection := _objection_to_ranks(spec, ranks, experts):
        return objection
    for what, size in {
        "all heads together": spec.attention.output_size,
        **_inner_sizes(spec, experts),
    }.items():
        if segments is not None and size % (INPUTS * segments):
            fitting = _listed(
                one for one in (1, 2, 4, 8, 16, 32, 64) if one % ranks == 0 and size % (INPUTS * one) == 0
            )
            return (
                f"{what} are {size} wide, which is no multiple of {INPUTS} x {segments} segments; "
                f"expected tensor_segments {fitting}"
            )
    return ""


def _objection_to_ranks(spec: DecoderSpec, ranks: int, experts: ExpertSharing) -> str:
    attention = spec.attention
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if heads % ranks:
        fitting = _listed(size for size in _divisors(heads) if not _kv_objection(kv_heads, size))
        return f"{heads} attention heads do not divide by {ranks}; expected {fitting}"
    if objection := _kv_objection(kv_heads, ranks):
        return objection
    if attention.qk_norm == "projection" and ranks > 1:
        return "the norm of queries and keys is over all heads at once; expected 1"
    if experts != "cut" and (objection := _objection_to_experts(spec, ranks)):
        return objection
    inputs = {"all heads together": attention.output_size, **_inner_sizes(spec, experts)}
    for what, size in inputs.items():
        if size % (INPUTS * ranks):
            fitting = _listed(one for one in _divisors(heads) if size % (INPUTS * one) == 0)
            return f"{what} are {size} wide, which is no multiple of {INPUTS} x {ranks}; expected {fitting}"
    return ""


def _kv_objection(kv_heads: int, ranks: int) -> str:
    if kv_heads % ranks == 0 or ranks % kv_heads == 0:
        return ""
    fitting = _listed(size for size in _divisors(kv_heads))
    return (
        f"{kv_heads} key and value heads are neither a multiple nor a divisor of {ranks}; expected {fitting}"
    )


def _objection_to_experts(spec: DecoderSpec, ranks: int) -> str:
    counts = {layer.mlp.num_experts for layer in spec.layers if isinstance(layer.mlp, MoESpec)}
    for count in sorted(counts):
        if count % ranks:
            return f"{count} experts do not divide by {ranks}; expected {_listed(iter(_divisors(count)))}"
    return ""


def _inner_sizes(spec: DecoderSpec, experts: ExpertSharing) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for layer in spec.layers:
        if isinstance(layer.mlp, MoESpec):
            if experts == "cut":
                sizes["the experts' inner layers"] = layer.mlp.size
            if layer.mlp.shared_size is not None:
                sizes["the shared expert's inner layers"] = layer.mlp.shared_size
        elif layer.mlp is not None:
            sizes["the MLPs' inner layers"] = layer.mlp.size
    return sizes


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _listed(numbers: Iterator[int]) -> str:
    *most, last = [str(number) for number in numbers] or ["1"]
    return f"{', '.join(most)} or {last}" if most else last
