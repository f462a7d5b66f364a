"""A quantised linear map of a checkpoint: the tensors that it is saved as, and the numbers that they stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pageant.models.errors import CheckpointError
from pageant.models.tensor_files import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["GROUP", "ROWS", "Fidelity", "ReadyModule", "missing_part", "wrong_part"]

GROUP = 32
"""Inputs that share a scale in our layouts (see `kernels.quantized`)."""
ROWS = 64
"""Decoded rows begin at a multiple of this, so that they begin with a word, a byte or a block of every format."""

Fidelity = Literal["exact", "rounded", "requantised", "dequantised"]
"""The nearness of a kept weight to the checkpoint's: `exact` codes and scales; exact codes, with scales `rounded` to
bfloat16; `requantised` to 8 bits; or `dequantised` into the model's dtype."""

_REMEDY = "Check that the configuration and the weights belong together, or download the checkpoint again."
_EXACT_SCALES = frozenset({"BF16", "F8_E8M0", "U8"})


@dataclass(frozen=True, kw_only=True)
class ReadyModule(ABC):
    """One linear map [outputs, inputs], whose weight is scale * value, with a scale for each group of inputs.

    A subclass checks dtypes and shapes of its parts when it is made, from headers alone.
    """

    name: str
    outputs: int
    inputs: int
    parts: Mapping[str, TensorInfo]
    """The tensors by what follows the module's name: "qweight", "scales"."""

    @property
    @abstractmethod
    def bits(self) -> Literal[8, 5, 4] | None:
        """The fewest bits of our layouts that hold its values, which are whole numbers; None where they are not."""

    @property
    @abstractmethod
    def group(self) -> int:
        """Inputs that share a scale, from 1 to all."""

    @property
    @abstractmethod
    def scales(self) -> TensorInfo:
        """The tensor with the scales."""

    @property
    def groups(self) -> npt.NDArray[np.int64] | None:
        """The group of each input where the file says it (act-order), int64 [inputs]; None: one after another."""
        return None

    @cached_property
    def order(self) -> npt.NDArray[np.int64] | None:
        """The inputs sorted by their groups, int64 [inputs]; None where they are sorted as they come."""
        groups = self.groups
        if groups is None or bool(np.all(groups[1:] >= groups[:-1])):
            return None
        return np.argsort(groups, kind="stable")

    @cached_property
    def fits(self) -> bool:
        """True where our layouts hold the values: 32 inputs in a row, once sorted, never need two scales."""
        if self.bits is None:
            return False
        if self.groups is None:
            return self.group % GROUP == 0 or self.group >= self.inputs
        sizes = np.bincount(self.groups)
        return bool(np.all(sizes[:-1] % GROUP == 0))

    @property
    def fidelity(self) -> Fidelity:
        """The nearness of the weight that is kept, where its values fit."""
        if not self.fits:
            return "requantised"
        return "exact" if self.scales.dtype in _EXACT_SCALES else "rounded"

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(info.num_bytes for info in self.parts.values())

    @abstractmethod
    def check_values(self) -> None:
        """Read the small parts (scales, zeros, orders), and raise CheckpointError for values that make no sense."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        """Return some rows: values [R, N] of int8, int16 or float32, and float32 scales [R, G].

        `rows.start` is a multiple of `ROWS`. `parts` are the module's tensors as they are saved; none is mutated.
        """

    def part(self, role: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> TensorInfo:
        """Return a part that must be there, in one of some dtypes and shapes; raise CheckpointError otherwise."""
        info = self.parts.get(role)
        if info is None:
            raise missing_part(self.name, role, self.parts)
        if info.dtype not in dtypes:
            raise wrong_part(info, f"dtype {info.dtype}", f"{' or '.join(dtypes)}")
        if info.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise wrong_part(info, f"shape {list(info.shape)}", f"{expected} ({self.described})")
        return info

    @property
    def described(self) -> str:
        """The numbers from which the shapes of its parts follow, for messages."""
        return f"{self.outputs} outputs, {self.inputs} inputs"


def wrong_part(info: TensorInfo, found: str, expected: str, remedy: str = _REMEDY) -> CheckpointError:
    """An error that names file and tensor; the caller raises it."""
    return CheckpointError(info.file, f"{info.name} has {found}", expected, remedy)


def missing_part(module: str, role: str, parts: Mapping[str, Any]) -> CheckpointError:
    """An error for a module that lacks a tensor; the caller raises it."""
    beside: TensorInfo = next(iter(parts.values()))
    return CheckpointError(
        beside.file, f"no {module}.{role} beside {beside.name}", "all parts of a quantised module", _REMEDY
    )
