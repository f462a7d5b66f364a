"""Rows of quantised modules into their places, a few at a time: decoded, sorted and repacked on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import QuantizedWeight, fill_codes
from pageant.kernels.tiled import LinearWeight, TiledWeight
from pageant.models.placing import unpaired_rows
from pageant.models.ready.grouped import Grouped
from pageant.models.ready.module import ROWS, ReadyModule
from pageant.models.ready.weights import Form
from pageant.models.weights import Place

__all__ = ["Target", "dequantised", "fill"]

_AT_A_TIME = 1 << 22  # numbers


class Target(Protocol):
    """The decoder whose weights are filled."""

    device: torch.device
    kernels: Kernels


def fill(
    weight: LinearWeight,
    module: ReadyModule,
    parts: Mapping[str, Tensor],
    form: Form,
    place: Place,
    target: Target,
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
) -> None:
    """Put a module, or some of its rows and columns, where it belongs.

    weight: the room for `place` (see `NativeDecoder.weight`), [outputs, inputs] in any dtype, mutated.
    parts: the module's tensors, on the CPU. form: that of the fused weight which the room is a part of.
    rows, columns: from the first to before the second, of the module's as it is saved; None is all of them.
    """
    first, last = rows or (0, module.outputs)
    if isinstance(weight, Tensor) and place.transposed:
        weight = weight.T  # modules are [out, in], whichever way a dense weight is saved
    as_codes = isinstance(weight, QuantizedWeight) and _is_kept(module, form)
    order = torch.from_numpy(form.order) if as_codes and form.order is not None else None
    heads = place.interleaved_heads
    together = _rows_of_a_head(place)
    for start, stop in [(first, last)] if heads is not None else _chunks(module, first, last, together):
        whole = start // ROWS * ROWS
        some = module.decode(parts, slice(whole, stop)).from_row(start - whole)
        some = _in_order(some if columns is None else some.columns(*columns), place)
        some = some.padded(weight.shape[0] - (last - first) if stop == last and heads is None else 0)
        room = weight if heads is not None else weight[start - first : start - first + len(some.values)]
        if not isinstance(room, QuantizedWeight):
            _fill_plain(room, some.plain(), heads)
        elif as_codes:
            codes, scales = some.codes(order)
            fill_codes(codes.to(target.device), scales.to(target.device), room)
        else:
            target.kernels.quantize(some.plain().to(target.device), room)


def dequantised(module: ReadyModule, parts: Mapping[str, Tensor]) -> Tensor:
    """Return the weight that a module stands for, float32 [outputs, inputs]."""
    return torch.cat(
        [module.decode(parts, slice(*rows)).plain() for rows in _chunks(module, 0, module.outputs)]
    )


def _is_kept(module: ReadyModule, form: Form) -> bool:
    """Tell whether a module's codes are kept in the form of its fused weight, rather than made anew."""
    if not module.fits or module.bits is None or form.bits is None or module.bits > form.bits:
        return False
    if module.order is None or form.order is None:
        return module.order is form.order
    return np.array_equal(module.order, form.order)


def _rows_of_a_head(place: Place) -> int:
    """Rows that have to be decoded together, since they change places."""
    return 1 if place.paired_heads is None else place.outputs // place.paired_heads


def _chunks(module: ReadyModule, first: int, last: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Yield rows from `first` to before `last`: whole heads of `together` rows, and whole blocks of `ROWS`."""
    rows = math.lcm(ROWS, together)
    count = max(1, _AT_A_TIME // max(1, module.inputs) // rows) * rows
    for start in range(first, last, count):
        yield start, min(start + count, last)


def _in_order(rows: Grouped, place: Place) -> Grouped:
    """Rows in the decoder's order; see `Place.interleaved_heads` and `Place.paired_heads`."""
    count = len(rows.values)
    if place.paired_heads is not None:
        order = unpaired_rows(count, count // _rows_of_a_head(place), place.paired_from)
    elif place.interleaved_heads is not None:
        order = torch.arange(count).view(place.interleaved_heads, 3, -1).transpose(0, 1).flatten()
    else:
        return rows
    return Grouped(rows.values[order], rows.scales[order], rows.group, rows.groups)


def _fill_plain(room: Tensor | TiledWeight, weight: Tensor, interleaved_heads: int | None) -> None:
    if isinstance(room, TiledWeight):
        room.fill(weight)
    elif interleaved_heads is not None:  # the room is split by head
        room.copy_(weight.view(3, interleaved_heads, -1, weight.shape[1]).transpose(0, 1))
    else:
        room.copy_(weight)
