"""Modules of whole numbers in rows, as compressed-tensors and bitsandbytes save them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pageant.models.ready.module import ReadyModule, wrong_part
from pageant.models.ready.values import check_scales, read_groups
from pageant.models.tensor_files import TensorInfo, read_values

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["Int8Module", "PackedModule"]

_SCALES = ("BF16", "F16", "F32")


@dataclass(frozen=True, kw_only=True)
class _Integers(ReadyModule):
    """Whole numbers with scales of groups, rows or the tensor, and with zeros where they are not symmetric."""

    symmetric: bool
    group_size: int | None

    def _check_scales_shape(self) -> int:
        """Check the shape of the scales; return the number of groups."""
        if self.inputs % self.group:
            raise wrong_part(
                next(iter(self.parts.values())),
                f"{self.inputs} inputs",
                f"a multiple of the group size, {self.group}",
            )
        groups = self.inputs // self.group
        single = ((1,), (1, 1), ()) if self.group_size is None else ()
        self.part("weight_scale", _SCALES, (self.outputs, groups), *single)
        return groups

    @property
    def described(self) -> str:
        return f"{super().described}, group size {self.group}"

    @property
    def group(self) -> int:
        return self.group_size or self.inputs

    @property
    def scales(self) -> TensorInfo:
        return self.parts["weight_scale"]

    def check_values(self) -> None:
        check_scales(self.scales)

    def _scales(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Scales float32 [R, groups] of some rows."""
        scales = parts["weight_scale"].float()
        if scales.numel() == 1:
            return scales.view(1, 1).expand(rows.stop - rows.start, 1)
        return scales[rows]


@dataclass(frozen=True, kw_only=True)
class PackedModule(_Integers):
    """Numbers of 4 or 8 bits in words of 32, raised to be above zero."""

    width: int

    def __post_init__(self) -> None:
        groups, per_word = self._check_scales_shape(), 32 // self.width
        self.part("weight_packed", ("I32",), (self.outputs, -(-self.inputs // per_word)))
        if not self.symmetric:
            self.part("weight_zero_point", ("I32",), (-(-self.outputs // per_word), groups))
        elif "weight_zero_point" in self.parts:
            raise wrong_part(self.parts["weight_zero_point"], "zeros", "none, since the scheme is symmetric")
        if "weight_shape" in self.parts:
            self.part("weight_shape", ("I64", "I32"), (2,))
        if "weight_g_idx" in self.parts:
            self.part("weight_g_idx", ("I32", "I64"), (self.inputs,))

    @property
    def described(self) -> str:
        return f"{super().described}, {self.width} bits"

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        if self.symmetric:
            return 8 if self.width == 8 else 4
        return 5 if self.width == 4 else None

    @cached_property
    def groups(self) -> npt.NDArray[np.int64] | None:
        info = self.parts.get("weight_g_idx")
        return None if info is None else read_groups(info, self.group)

    def check_values(self) -> None:
        super().check_values()
        _ = self.groups
        info = self.parts.get("weight_shape")
        if info is not None and (shape := read_values(info).tolist()) != [self.outputs, self.inputs]:
            raise wrong_part(info, str(shape), f"[{self.outputs}, {self.inputs}], the shape of {self.name}")

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped
        from pageant.models.ready.unpacking import words_along_inputs, words_along_outputs

        raised, groups = 1 << (self.width - 1), None if self.groups is None else torch.from_numpy(self.groups)
        values = words_along_outputs(parts["weight_packed"][rows], self.width)[:, : self.inputs]
        scales = self._scales(parts, rows)
        if self.symmetric:
            return Grouped((values - raised).view(torch.int8), scales, self.group, groups)
        words = slice(rows.start * self.width // 32, -(-rows.stop * self.width // 32))
        # Zeros are packed along outputs, so that a column's are those of rows; both are raised alike.
        zeros = words_along_inputs(parts["weight_zero_point"][words], self.width)[:, : len(values)].T.to(
            torch.int16
        )
        wide = values.to(torch.int16)
        if groups is not None:
            wide = wide - zeros[:, groups]
        else:
            torch.unflatten(wide, 1, (-1, self.group)).sub_(zeros[:, :, None])
        return Grouped(wide if self.width == 8 else wide.to(torch.int8), scales, self.group, groups)


@dataclass(frozen=True, kw_only=True)
class Int8Module(_Integers):
    """Numbers of 8 bits as they are."""

    def __post_init__(self) -> None:
        groups = self._check_scales_shape()
        self.part("weight", ("I8",), (self.outputs, self.inputs))
        if not self.symmetric:
            self.part("weight_zero_point", ("I8", "I32", "I64"), (self.outputs, groups), (1,))

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return 8 if self.symmetric else None

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped

        values, scales = parts["weight"][rows], self._scales(parts, rows)
        if self.symmetric:
            return Grouped(values, scales, self.group)
        zeros = parts["weight_zero_point"].to(torch.int16)
        zeros = zeros if zeros.numel() == 1 else zeros[rows].repeat_interleave(self.group, 1)
        return Grouped(values.to(torch.int16) - zeros, scales, self.group)
