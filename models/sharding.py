"""A rank's share of a model's weights: its own smaller specification, and the parts of a checkpoint that it reads.

Layers are divided over the stages of a pipeline (`stages`). Each is cut for the ranks of its stage: projections into
attention and the MLP by their outputs, whole heads together, and projections back to the stream by their inputs.
Embedding and head are cut by the vocabulary. Norms and routers are whole on each rank. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec, MoESpec
from pageant.models.stages import WHOLE, Stage
from pageant.models.weights import Place, model_shapes

__all__ = [
    "ExpertSharing",
    "Piece",
    "Shard",
    "is_segmented",
    "local_spec",
    "pieces",
    "segment_name",
    "segment_names",
    "segment_shape",
]

ExpertSharing = Literal["cut", "whole", "exact"]
"""How ranks share experts out: a part of each, as of an MLP, or whole ones.

Of whole ones, each rank adds up its own. With "exact" it adds all that were chosen, in the order of one rank alone.
"""

INPUTS = 32
"""Inputs of a projection come to a rank in multiples of this: so many share a scale where weights are quantised."""
ROWS = 16
"""Rows come to a rank in multiples of this, as tiles of weights have them."""

Range = tuple[int, int]
"""Rows or columns from the first to before the second."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Share of one of the `ranks` ranks of a stage."""

    rank: int
    ranks: int
    segments: int | None = None
    """Segments of sums over inputs, of all ranks together: a multiple of `ranks`. None is one for each rank."""
    experts: ExpertSharing = "cut"
    """How a mixture's experts are shared out."""
    stage: Stage = WHOLE
    """The rank's stage of the pipeline."""

    @property
    def is_joint(self) -> bool:
        """Tell whether sums over inputs are taken by several ranks, or in segments."""
        return self.ranks > 1 or self.segments not in (None, 1)

    @property
    def segments_here(self) -> int:
        """Return the neighbouring segments that this rank has."""
        return 1 if self.segments is None else self.segments // self.ranks

    def of_segment(self, segment: int) -> Shard:
        """Return one of this rank's segments as a share of its own."""
        count = self.segments_here
        return Shard(self.rank * count + segment, self.ranks * count)

    def part(self, size: int) -> Range:
        """Return this rank's part of so many rows or columns."""
        each = size // self.ranks
        return self.rank * each, (self.rank + 1) * each


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a checkpoint's tensor, and where it goes among the rank's own weights."""

    rows: Range
    """Rows of the tensor as the decoder has them, [out, in]."""
    columns: Range | None
    """Columns of them; None is all."""
    place: Place
    padding: int = 0
    """Rows of zeros that follow in the place, where the vocabulary is no multiple of what ranks have."""

    @property
    def ranges(self) -> tuple[Range, Range | None]:
        """Return rows and columns."""
        return self.rows, self.columns


_SEGMENTED = frozenset({"o.weight", "down.weight", "shared_down.weight"})
_SEGMENTED_EXPERTS = frozenset({"expert_down.weight", "expert_gate_up.weight", "expert_gate_up.bias"})


def is_segmented(name: str, experts: ExpertSharing) -> bool:
    """Tell whether each segment of a tensor is a weight of its own: of sums over inputs, and what feeds experts'."""
    return name in _SEGMENTED or (experts == "cut" and name in _SEGMENTED_EXPERTS)


def segment_name(name: str, segment: int) -> str:
    """Return the name of one segment of a tensor of `weights`."""
    module, _, kind = name.rpartition(".")
    return f"{module}.segment{segment}.{kind}"


def segment_shape(name: str, shape: tuple[int, ...], segments: int) -> tuple[int, ...]:
    """Return the shape of one segment of a tensor: fewer rows of what feeds experts, else fewer inputs."""
    if name == "expert_gate_up.bias":
        return (*shape[:-1], shape[-1] // segments)
    *outer, rows, inputs = shape
    if name.startswith("expert_gate_up"):
        return (*outer, rows // segments, inputs)
    return (*outer, rows, inputs // segments)


def padded_vocabulary(vocab_size: int, ranks: int) -> int:
    """Return the rows of the vocabulary that all ranks have together, as many on each."""
    unit = ROWS * ranks
    return -(-vocab_size // unit) * unit


def local_spec(spec: DecoderSpec, shard: Shard) -> DecoderSpec:
    """Return the specification of a rank's share: that of a smaller decoder."""
    ranks, layers = shard.ranks, shard.stage.layers(spec.num_layers)
    attention = replace(
        spec.attention,
        num_heads=spec.attention.num_heads // ranks,
        num_kv_heads=max(1, spec.attention.num_kv_heads // ranks),
    )
    return replace(
        spec,
        vocab_size=padded_vocabulary(spec.vocab_size, ranks) // ranks if shard.is_joint else spec.vocab_size,
        attention=attention,
        layers=tuple(
            replace(spec.layers[index], mlp=_local_mlp(spec.layers[index], shard)) for index in layers
        ),
        begins=shard.stage.is_first,
        ends=shard.stage.is_last,
    )


def _local_mlp(layer: LayerSpec, shard: Shard) -> MLPSpec | MoESpec:
    mlp, ranks = layer.mlp, shard.ranks
    assert mlp is not None, (
        "layers without an MLP are of models with recurrent layers, which are not shared out"
    )
    if not isinstance(mlp, MoESpec):
        return replace(mlp, size=mlp.size // ranks)
    shared = None if mlp.shared_size is None else mlp.shared_size // ranks
    if shard.experts == "cut":
        return replace(mlp, size=mlp.size // ranks, shared_size=shared)
    first, stop = shard.part(mlp.num_experts)
    return replace(mlp, shared_size=shared, first_here=first, experts_here=stop - first)


def pieces(spec: DecoderSpec, shard: Shard | None, place: Place) -> Iterator[Piece]:
    """Yield the parts of a checkpoint's tensor that are read, given the tensor's place in the whole model.

    Args:
        shard: the rank's; None reads all.
    """
    if shard is None:
        yield Piece((0, place.outputs), None, place)
        return
    layers = shard.stage.layers(spec.num_layers)
    if place.layer is None:
        if place.name in model_shapes(replace(spec, begins=shard.stage.is_first, ends=shard.stage.is_last)):
            yield from _of_rank(spec, shard, place)
    elif place.layer in layers:
        for piece in _of_rank(spec, shard, place):
            yield replace(piece, place=replace(piece.place, layer=place.layer - layers.start))


def _of_rank(spec: DecoderSpec, shard: Shard, place: Place) -> Iterator[Piece]:
    """Yield the parts that a rank of the tensor's stage reads, with their places in the whole model's layers."""
    if not shard.is_joint:
        yield Piece((0, place.outputs), None, place)
        return
    if shard.experts != "cut" and place.expert is not None:
        yield from _of_whole_expert(spec, shard, place)
        return
    if shard.segments_here == 1 or not is_segmented(place.name, shard.experts):
        yield from _pieces(spec, shard, place)
        return
    for segment in range(shard.segments_here):
        for piece in _pieces(spec, shard.of_segment(segment), place):
            yield replace(piece, place=replace(piece.place, name=segment_name(place.name, segment)))


def _of_whole_expert(spec: DecoderSpec, shard: Shard, place: Place) -> Iterator[Piece]:
    assert place.layer is not None and place.expert is not None, "experts are in layers"
    mlp = _local_mlp(spec.layers[place.layer], shard)
    assert isinstance(mlp, MoESpec), "the layer has experts"
    here = place.expert - mlp.first_here
    if mlp.experts_here is not None and 0 <= here < mlp.experts_here:
        yield Piece((0, place.outputs), None, replace(place, expert=here))


def segment_names(name: str, segments: int) -> list[str]:
    """Return the names of a weight's segments; its own where there is one."""
    return [name] if segments == 1 else [segment_name(name, segment) for segment in range(segments)]


def _pieces(spec: DecoderSpec, shard: Shard, place: Place) -> Iterator[Piece]:
    module, _, kind = place.name.rpartition(".")
    rows = place.outputs
    first = place.row
    ranges = _row_ranges(spec, shard, place, module)
    columns = _columns(spec, shard, place, module) if kind == "weight" else None
    if ranges is None:
        yield Piece((0, rows), columns, _smaller(place, place.row, rows, columns, shard))
        return
    if place.interleaved_heads is not None or (place.paired_heads is not None and module != "qkv"):
        start, stop = shard.part(rows)  # which are together here, and apart in the decoder
        yield Piece((start, stop), columns, _smaller(place, 0, stop - start, columns, shard))
        return
    local = 0
    for start, stop in ranges:
        begin, end = max(start, first), min(stop, first + rows)
        if begin < end:
            part = (begin - first, end - first)
            padding = 0 if place.layer is not None else -(end - begin) % ROWS
            smaller = _smaller(place, local + begin - start, end - begin + padding, columns, shard)
            yield Piece(part, columns, smaller, padding)
        local += stop - start


def _smaller(place: Place, row: int, rows: int, columns: Range | None, shard: Shard) -> Place:
    """Return a place among the rank's own weights, of so many rows and of these columns."""
    heads, paired = place.interleaved_heads, place.paired_heads
    whole = place.outputs
    if len(place.shape) == 1:
        shape: tuple[int, ...] = (rows,)
    else:
        out, inner = (1, 0) if place.transposed else (0, 1)
        width = place.shape[inner] if columns is None else columns[1] - columns[0]
        shape = (width, rows) if out else (rows, width)
    return replace(
        place,
        shape=shape,
        row=row,
        interleaved_heads=None if heads is None else heads // shard.ranks,
        paired_heads=None if paired is None else max(1, paired * rows // whole),
    )


def _row_ranges(spec: DecoderSpec, shard: Shard, place: Place, module: str) -> list[Range] | None:
    """Return a rank's rows of one of the model's tensors, in the order in which it has them; None is all."""
    if module in ("embedding", "lm_head"):
        start, stop = shard.part(padded_vocabulary(spec.vocab_size, shard.ranks))
        return [(start, stop)]
    if module == "qkv":
        return _qkv_ranges(spec.attention, shard)
    if module in ("query", "heads"):  # latents are whole on each rank
        return [shard.part(place.outputs)]
    if module == "sinks":
        return [shard.part(spec.attention.num_heads)]
    size = _inner_size(spec, place, module)
    if size is None:
        return None
    if module.endswith("gate_up"):
        start, stop = shard.part(size)
        return [(start, stop), (size + start, size + stop)]
    return [shard.part(size)] if module.endswith("up") else None


def _qkv_ranges(attention: AttentionSpec, shard: Shard) -> list[Range]:
    query, kv, dim = attention.query_size, attention.kv_size, attention.head_dim
    if attention.num_kv_heads >= shard.ranks:
        start, stop = shard.part(kv)
    else:  # some ranks have the same head
        head = shard.rank * attention.num_kv_heads // shard.ranks
        start, stop = head * dim, (head + 1) * dim
    return [shard.part(query), (query + start, query + stop), (query + kv + start, query + kv + stop)]


def _columns(spec: DecoderSpec, shard: Shard, place: Place, module: str) -> Range | None:
    """Return a rank's columns of one of the model's matrices; None is all."""
    if module == "o":
        return shard.part(spec.attention.output_size)
    size = _inner_size(spec, place, module)
    return shard.part(size) if size is not None and module.endswith("down") else None


def _inner_size(spec: DecoderSpec, place: Place, module: str) -> int | None:
    """Return the width within the MLP that a module belongs to; None for another module."""
    if place.layer is None or not module.endswith(("gate_up", "up", "down")):
        return None
    mlp = spec.layers[place.layer].mlp
    assert mlp is not None, "the place is in one"
    if isinstance(mlp, MLPSpec):
        return mlp.size
    return mlp.shared_size if module.startswith("shared_") else mlp.size
