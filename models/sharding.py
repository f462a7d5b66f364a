"""A rank's share of a model's weights: its own smaller specification, and the parts of a checkpoint that it reads.

Each layer is cut: projections into attention and the MLP by their outputs, whole heads together, and projections back
to the stream by their inputs. Embedding and head are cut by the vocabulary. Norms and routers are whole on each rank.
Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pageant.models.checkpoint import Checkpoint
from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec, MoESpec
from pageant.models.weights import Place

__all__ = [
    "Piece",
    "Shard",
    "is_segmented",
    "local_spec",
    "objection_to",
    "pieces",
    "segment_name",
    "segment_names",
    "why_not_shared",
]

INPUTS = 32
"""Inputs of a projection come to a rank in multiples of this: so many share a scale where weights are quantised."""
ROWS = 16
"""Rows come to a rank in multiples of this, as tiles of weights have them."""

Range = tuple[int, int]
"""Rows or columns from the first to before the second."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Share of one of `ranks` ranks."""

    rank: int
    ranks: int
    segments: int | None = None
    """Segments of sums over inputs, of all ranks together: a multiple of `ranks`. None is one for each rank."""

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


def why_not_shared(checkpoint: Checkpoint, ranks: int, segments: int | None = None) -> str:
    """Return why a checkpoint cannot be shared out over so many ranks, with what would do; "" if it can.

    Args:
        segments: see `Shard`.
    """
    if checkpoint.architecture is None:
        names = checkpoint.config.get("architectures") or ["?"]
        return f"{names[0]} runs on transformers' own code, which is whole; expected 1"
    if checkpoint.pooling is not None:
        return "models whose hidden states are pooled are not shared out in this version; expected 1"
    return objection_to(checkpoint.decoder_spec(), ranks, segments) or _scattered_inputs(checkpoint)


def _scattered_inputs(checkpoint: Checkpoint) -> str:
    """Return which quantised weight cannot be cut by its inputs, since their groups are scattered; "" if none."""
    forms = {} if checkpoint.ready is None else checkpoint.ready.forms
    for (layer, name), form in forms.items():
        if form.order is not None and is_segmented(name):
            return (
                f"layer {layer}'s {name} has groups of inputs that are scattered over all of them (act-order); "
                "expected 1, or a checkpoint without act-order"
            )
    return ""


_SEGMENTED = frozenset(
    {
        *("o.weight", "down.weight", "shared_down.weight", "expert_down.weight"),
        *("expert_gate_up.weight", "expert_gate_up.bias"),
    }
)


def is_segmented(name: str) -> bool:
    """Tell whether each segment of a tensor is a weight of its own: of sums over inputs, and what feeds experts'."""
    return name in _SEGMENTED


def segment_name(name: str, segment: int) -> str:
    """Return the name of one segment of a tensor of `weights`."""
    module, _, kind = name.rpartition(".")
    return f"{module}.segment{segment}.{kind}"


def objection_to(spec: DecoderSpec, ranks: int, segments: int | None = None) -> str:
    """Return why a model cannot be shared out over so many ranks, with what would do; "" if it can.

    Args:
        segments: see `Shard`.
    """
    if objection := _objection_to_ranks(spec, ranks):
        return objection
    for what, size in {"all heads together": spec.attention.query_size, **_inner_sizes(spec)}.items():
        if segments is not None and size % (INPUTS * segments):
            fitting = _listed(
                one for one in (1, 2, 4, 8, 16, 32, 64) if one % ranks == 0 and size % (INPUTS * one) == 0
            )
            return (
                f"{what} are {size} wide, which is no multiple of {INPUTS} x {segments} segments; "
                f"expected tensor_segments {fitting}"
            )
    return ""


def _objection_to_ranks(spec: DecoderSpec, ranks: int) -> str:
    attention = spec.attention
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if heads % ranks:
        fitting = _listed(size for size in _divisors(heads) if not _kv_objection(kv_heads, size))
        return f"{heads} attention heads do not divide by {ranks}; expected {fitting}"
    if objection := _kv_objection(kv_heads, ranks):
        return objection
    if attention.qk_norm == "projection" and ranks > 1:
        return "the norm of queries and keys is over all heads at once; expected 1"
    inputs = {"all heads together": attention.query_size, **_inner_sizes(spec)}
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


def _inner_sizes(spec: DecoderSpec) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for layer in spec.layers:
        if isinstance(layer.mlp, MoESpec):
            sizes["the experts' inner layers"] = layer.mlp.size
            if layer.mlp.shared_size is not None:
                sizes["the shared expert's inner layers"] = layer.mlp.shared_size
        else:
            sizes["the MLPs' inner layers"] = layer.mlp.size
    return sizes


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _listed(numbers: Iterator[int]) -> str:
    *most, last = [str(number) for number in numbers] or ["1"]
    return f"{', '.join(most)} or {last}" if most else last


def padded_vocabulary(vocab_size: int, ranks: int) -> int:
    """Return the rows of the vocabulary that all ranks have together, as many on each."""
    unit = ROWS * ranks
    return -(-vocab_size // unit) * unit


def local_spec(spec: DecoderSpec, shard: Shard) -> DecoderSpec:
    """Return the specification of a rank's share: that of a smaller decoder."""
    ranks = shard.ranks
    attention = replace(
        spec.attention,
        num_heads=spec.attention.num_heads // ranks,
        num_kv_heads=max(1, spec.attention.num_kv_heads // ranks),
    )
    return replace(
        spec,
        vocab_size=padded_vocabulary(spec.vocab_size, ranks) // ranks,
        attention=attention,
        layers=tuple(replace(layer, mlp=_local_mlp(layer, ranks)) for layer in spec.layers),
    )


def _local_mlp(layer: LayerSpec, ranks: int) -> MLPSpec | MoESpec:
    mlp = layer.mlp
    if isinstance(mlp, MoESpec):
        shared = None if mlp.shared_size is None else mlp.shared_size // ranks
        return replace(mlp, size=mlp.size // ranks, shared_size=shared)
    return replace(mlp, size=mlp.size // ranks)


def pieces(spec: DecoderSpec, shard: Shard | None, place: Place) -> Iterator[Piece]:
    """Yield the parts of a checkpoint's tensor that are read, given the tensor's place in the whole model.

    Args:
        shard: the rank's; None reads all.
    """
    if shard is None:
        yield Piece((0, place.outputs), None, place)
        return
    if shard.segments_here == 1 or not is_segmented(place.name):
        yield from _pieces(spec, shard, place)
        return
    for segment in range(shard.segments_here):
        for piece in _pieces(spec, shard.of_segment(segment), place):
            yield replace(piece, place=replace(piece.place, name=segment_name(place.name, segment)))


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
        return shard.part(spec.attention.query_size)
    size = _inner_size(spec, place, module)
    return shard.part(size) if size is not None and module.endswith("down") else None


def _inner_size(spec: DecoderSpec, place: Place, module: str) -> int | None:
    """Return the width within the MLP that a module belongs to; None for another module."""
    if place.layer is None or not module.endswith(("gate_up", "up", "down")):
        return None
    mlp = spec.layers[place.layer].mlp
    if isinstance(mlp, MLPSpec):
        return mlp.size
    return mlp.shared_size if module.startswith("shared_") else mlp.size
