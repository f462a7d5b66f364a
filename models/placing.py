"""Views of fused weights: the part that one tensor of a checkpoint belongs in."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.quantized import QuantizedWeight
from pageant.kernels.tiled import LinearWeight, TiledWeight
from pageant.models.weights import Place

__all__ = ["as_rows", "fill_plain", "unpaired_rows", "view_of"]


def view_of(whole: LinearWeight, place: Place) -> LinearWeight:
    """Return the view of a weight that a checkpoint's tensor belongs in.

    It has the place's shape, but for rows interleaved by head, which it splits: [H, 3, D, ...]. What is
    quantised or in tiles has the rows as they are here, neither transposed nor interleaved: [M, N].
    """
    if place.expert is not None:
        assert not isinstance(whole, TiledWeight), "no linear map is a stack"
        whole = whole[place.expert]
    rows = place.outputs
    if isinstance(whole, QuantizedWeight | TiledWeight):
        return whole[place.row : place.row + rows]
    if place.interleaved_heads is not None:
        split: Tensor = whole.view(3, place.interleaved_heads, -1, *whole.shape[1:]).transpose(0, 1)
        return split
    part: Tensor = whole[place.row : place.row + rows]
    return part.T if place.transposed else part


def fill_plain(view: Tensor, tensor: Tensor, place: Place) -> None:
    """Copy a checkpoint's tensor [*place.shape] into its view, cast on the way. Mutates view, which has any dtype."""
    if place.paired_heads is None:
        view.copy_(tensor.view(view.shape))
    else:
        rows = as_rows(tensor.T if place.transposed else tensor, place)
        view.copy_(rows.T if place.transposed else rows)
    if place.plus:
        view.add_(place.plus)


def as_rows(tensor: Tensor, place: Place) -> Tensor:
    """Return a checkpoint's matrix or bias [rows, ...], of any dtype, with its rows in the decoder's order.

    See `Place.interleaved_heads` and `Place.paired_heads`.
    """
    if place.paired_heads is not None:
        return tensor[unpaired_rows(len(tensor), place.paired_heads, place.paired_from)]
    if place.interleaved_heads is None:
        return tensor
    return tensor.view(place.interleaved_heads, 3, -1, *tensor.shape[1:]).transpose(0, 1).flatten(0, 2)


def unpaired_rows(count: int, heads: int, first: int) -> Tensor:
    """Return the order in which `count` rows of so many heads are no longer in pairs, int64 [count].

    first: the first row of each head that is in pairs.
    """
    rows = torch.arange(count).view(heads, -1)
    halves = rows[:, first:].reshape(heads, -1, 2).transpose(1, 2).flatten(1)
    return torch.cat((rows[:, :first], halves), dim=1).flatten()
