"""Decoded rows: values, and the scales of their groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.models.ready.module import GROUP

__all__ = ["Grouped"]


@dataclass(frozen=True, eq=False, slots=True)
class Grouped:
    """Some rows of a matrix: weight[r, i] = scales[r, g] * values[r, i], where g is the group of input i."""

    values: Tensor
    """[R, N]: int8 where they are whole numbers that fit, else a wider or a floating type."""
    scales: Tensor
    """float32 [R, G]."""
    group: int
    """Inputs of a group, where groups follow one another."""
    groups: Tensor | None = None
    """int64 [N]: the group of each input, where they do not."""

    def plain(self) -> Tensor:
        """Return the weight, float32 [R, N]."""
        inputs = self.values.shape[1]
        if self.groups is not None:
            return self.values * self.scales[:, self.groups]
        whole = inputs // self.group * self.group
        weight = self.values.float()
        # Whole groups are multiplied in place; a scale of every input would be as large as the weight.
        torch.unflatten(weight[:, :whole], 1, (-1, self.group)).mul_(
            self.scales[:, : whole // self.group, None]
        )
        if whole < inputs:
            weight[:, whole:] *= self.scales[:, -1:]
        return weight

    def from_row(self, first: int) -> Grouped:
        """Return the rows from one on."""
        if first == 0:
            return self
        return Grouped(self.values[first:], self.scales[first:], self.group, self.groups)

    def padded(self, rows: int) -> Grouped:
        """Return these rows and so many of zeros behind them."""
        if rows == 0:
            return self
        values, scales = (F.pad(part, (0, 0, 0, rows)) for part in (self.values, self.scales))
        return Grouped(values, scales, self.group, self.groups)

    def columns(self, start: int, stop: int) -> Grouped:
        """Return some inputs, each with the scale that it has."""
        if (start, stop) == (0, self.values.shape[1]):
            return self
        groups = self.groups
        if groups is None:
            groups = torch.arange(self.values.shape[1], device=self.values.device) // self.group
            groups.clamp_(max=self.scales.shape[1] - 1)
        return Grouped(self.values[:, start:stop], self.scales, self.group, groups[start:stop])

    def codes(self, order: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return values int8 [R, N], their inputs in this order, and the scales float32 [R, N / 32] of our layout."""
        inputs = self.values.shape[1]
        firsts = torch.arange(0, inputs, GROUP)
        if order is not None:
            firsts = order[firsts]
        groups = firsts // self.group if self.groups is None else self.groups[firsts]
        values = self.values if order is None else self.values[:, order]
        return values.to(torch.int8), self.scales[:, groups]
