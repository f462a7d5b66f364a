"""Texts of calibration through a model, layer by layer, each layer rounded before the next one sees its outputs.

Only one layer's weights are in memory, and the texts' hidden states. Within a layer the fused weights are rounded in
the order of the computation, so that each one's Hessian is of the inputs which the rounded ones before it make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.models.checkpoint import Checkpoint
from pageant.models.kv_cache import KVLayout
from pageant.models.layers import DecoderLayer
from pageant.models.mapped_files import MappedFiles
from pageant.models.placing import fill_plain, view_of
from pageant.models.quantizing.gptq import Hessian, round_by_hessian
from pageant.models.quantizing.observing import ObservedKernels
from pageant.models.quantizing.passes import BLOCK_SIZE, Pass, together
from pageant.models.quantizing.rounded import Rounded, check_finite, round_off
from pageant.models.quantizing.rounding import dequantised
from pageant.models.quantizing.schemes import Scheme
from pageant.models.quantizing.targets import Selection, Target
from pageant.models.recurrent_states import Both, LayerState
from pageant.models.rotary import rotary_table
from pageant.models.spec import DecoderSpec, LayerSpec
from pageant.models.state_batch import make_state_batch
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Place, is_float32, layer_shapes
from pageant.protocol.errors import ArgumentError

__all__ = ["Solving", "round_by_layers"]


@dataclass(frozen=True, slots=True)
class Solving:
    """Settings of the rounding by Hessians; see `round_by_hessian`. Raises ArgumentError."""

    act_order: bool = True
    damping: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.damping <= 1:
            raise ArgumentError("damping", f"found {self.damping}; expected a share from 0 to 1")


def round_by_layers(
    checkpoint: Checkpoint,
    selection: Selection,
    scheme: Scheme,
    sequences: Sequence[Sequence[int]],
    solving: Solving,
) -> Iterator[Rounded]:
    """Yield all targets, rounded, in the order of the layers. sequences: token ids, at least one of each."""
    spec, places = checkpoint.decoder()
    # Half precision overflows in some models, and is slow on a CPU.
    dtype = torch.bfloat16 if checkpoint.dtype == "bfloat16" else torch.float32
    passes = [Pass(some) for some in together(sequences)]
    tables = {
        place.name: checkpoint.tensors[name]
        for name, place in places.items()
        if place.name in ("embedding.weight", "position_embedding.weight")
    }
    with MappedFiles() as files:
        for one in passes:
            one.stream = _embedded(spec, one, tables, files, dtype)
    observed = ObservedKernels(kernels.load())
    by_layer: defaultdict[int | None, list[Target]] = defaultdict(list)
    for target in selection.targets:
        by_layer[target.place.layer].append(target)
    last = max(number for number in by_layer if number is not None)
    for number in range(last + 1):
        own = {name: place for name, place in places.items() if place.layer == number}
        layer = _Layer(spec, number, checkpoint, own, observed, passes, dtype)
        yield from layer.rounded(by_layer[number], scheme, solving)
        if number < last:
            layer.advance()


def _embedded(
    spec: DecoderSpec, one: Pass, tables: Mapping[str, TensorInfo], files: MappedFiles, dtype: torch.dtype
) -> Tensor:
    """Return the inputs of the first layer, [T, hidden_size]; see `NativeDecoder.forward`."""
    hidden = F.embedding(one.token_ids, files.read(tables["embedding.weight"])).to(dtype)
    if spec.embedding_scale is not None:
        hidden *= torch.tensor(spec.embedding_scale, dtype=dtype)
    if spec.learned_positions:
        hidden += F.embedding(one.positions, files.read(tables["position_embedding.weight"])).to(dtype)
    return hidden


class _Layer:
    """The layer at hand: its weights, fused and dense, and the passes that go through it."""

    def __init__(
        self,
        spec: DecoderSpec,
        number: int,
        checkpoint: Checkpoint,
        places: Mapping[str, Place],
        observed: ObservedKernels,
        passes: Sequence[Pass],
        dtype: torch.dtype,
    ) -> None:
        layer = spec.layers[number]
        self._weights = _read(spec, layer, checkpoint, places, dtype)
        self._passes, self._observed = passes, observed
        rotary = None
        if layer.rope is not None:
            longest = max(one.batch.max_context_length for one in passes)
            rotary = rotary_table(layer.rope, longest, torch.device("cpu"))
        self._layer = DecoderLayer(spec, layer, rotary, self._weights, cast("Kernels", observed))
        blocks = max(one.num_blocks for one in passes)
        cpu = torch.device("cpu")
        attention: Any = None
        if layer.attends:
            (attention,) = KVLayout.of(spec.attention, 1, dtype).allocate(blocks, BLOCK_SIZE, cpu)
        self._memory = Both(
            attention, None if layer.recurrent is None else LayerState.alone(layer.recurrent, blocks, dtype)
        )

    def rounded(self, targets: Sequence[Target], scheme: Scheme, solving: Solving) -> Iterator[Rounded]:
        """Yield the layer's targets, rounded; its weights are then what they are dequantised to."""
        by_name: defaultdict[str, list[Target]] = defaultdict(list)
        for target in targets:
            by_name[target.place.name].append(target)
        # The shapes of a layer are in the order in which it computes.
        for name in [name for name in self._weights if name in by_name]:
            weight = self._weights[name]
            stack = weight if weight.ndim == 3 else weight[None]
            hessians = [Hessian(weight.shape[-1]) for _ in stack]
            runs = [partial(self._run, one) for one in self._passes]
            self._observed.observe(weight, hessians, cast("list[Callable[[], object]]", runs))
            for expert, (matrix, hessian) in enumerate(zip(stack, hessians, strict=True)):
                its = [target for target in by_name[name] if target.place.expert in (None, expert)]
                yield from _solve(matrix, hessian, its, scheme, solving)

    def advance(self) -> None:
        """Replace the passes' streams with what the layer makes of them."""
        for one in self._passes:
            one.stream = self._run(one)

    def _run(self, one: Pass) -> Tensor:
        batch: Any = one.batch
        memory: Any = self._memory.attention
        if self._memory.recurrent is not None:
            of_states = make_state_batch(one.batch, one.batch.block_tables[None], BLOCK_SIZE)
            if memory is None:
                batch, memory = of_states, self._memory.recurrent
            else:
                batch, memory = Both(batch, of_states), self._memory
        hidden, residual = self._layer.forward(one.stream, None, one.positions, batch, memory, None)
        return hidden if residual is None else hidden + residual


def _read(
    spec: DecoderSpec,
    layer: LayerSpec,
    checkpoint: Checkpoint,
    places: Mapping[str, Place],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """The weights of a layer by name, fused."""
    weights = {
        name: torch.empty(shape, dtype=torch.float32 if is_float32(spec, name) else dtype)
        for name, shape in layer_shapes(spec, layer).items()
    }
    with MappedFiles() as files:
        for name, place in places.items():
            info = checkpoint.tensors[name]
            tensor = files.read(info)
            check_finite(info, tensor)
            fill_plain(cast("Tensor", view_of(weights[place.name], place)), tensor, place)
    return weights


def _solve(
    matrix: Tensor, hessian: Hessian, targets: Sequence[Target], scheme: Scheme, solving: Solving
) -> Iterator[Rounded]:
    """Round a fused weight [M, N] of any dtype, which is mutated, and yield its parts."""
    weight = matrix.float()
    codes, scales = round_by_hessian(
        weight, hessian, scheme, act_order=solving.act_order, damping=solving.damping
    )
    matrix.copy_(dequantised(codes, scales))
    for target in targets:
        its_weight, its_codes, its_scales = (_part(fused, target) for fused in (weight, codes, scales))
        yield round_off(target, its_weight, its_codes, its_scales, hessian.tokens)


def _part(fused: Tensor, target: Target) -> Tensor:
    """The rows of a target in the order in which they are saved: [outputs, ...] of [M, ...]."""
    place = replace(target.place, expert=None, transposed=False, shape=(target.outputs, fused.shape[1]))
    return cast("Tensor", view_of(fused, place)).reshape(target.outputs, -1)
