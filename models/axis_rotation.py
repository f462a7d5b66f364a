"""Rotation by time, height and width (M-RoPE), with kernels that rotate by one position.

Each step has a table of its own, with a row for each token. The row is made of the table's rows at the token's three
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from pageant.models.layers import DecoderLayer
from pageant.models.rotary import rotary_axes, table_of_step
from pageant.models.spec import RopeSpec

__all__ = ["AxisRotation"]


class AxisRotation:
    """Replaces the rotary tables of a decoder's layers for a step.

    Args:
        layers: all of the decoder; those whose rotations have no sections stay as they are.
        tables: float32 [positions, rotary_dim] of each rotation; see `rotary_table`.
    """

    def __init__(self, layers: Sequence[DecoderLayer], tables: Mapping[RopeSpec, Tensor]) -> None:
        self._tables = dict(tables)
        self._axes = {
            rope: rotary_axes(rope, table.device) for rope, table in tables.items() if rope.sections
        }
        self._layers = [(layer.attention, layer.rope) for layer in layers if layer.rope in self._axes]

    @contextmanager
    def by(self, positions: Tensor) -> Iterator[None]:
        """Rotate the i-th token of a step by positions[:, i] within the context; its own position is i there.

        positions: int64 [3, T].
        """
        steps = {
            rope: table_of_step(self._tables[rope], axes, positions) for rope, axes in self._axes.items()
        }
        try:
            for attention, rope in self._layers:
                if rope is not None:
                    attention.rotary = steps[rope]
            yield
        finally:
            for attention, rope in self._layers:
                if rope is not None:
                    attention.rotary = self._tables[rope]
