"""MXFP4 (Open Compute Project, 2023): 32 numbers of e2m1 share a power of two, as gpt-oss's experts have it.

    M_blocks   uint8 [experts, outputs, inputs / 32, 16]   the lower four bits of a byte are the number before
    M_scales   uint8 [experts, outputs, inputs / 32]       exponents e: a weight is e2m1 * 2 ** (e - 127)

Twice an e2m1 number is whole, and at most 12: our 5 bits hold it, and bfloat16 the half of its scale, so that nothing
is rounded. The parts of an expert are its module's here (`Names.stacks`), with the suffixes "blocks" and "scales".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from pageant.models.config import Config
from pageant.models.ready.method import Method
from pageant.models.ready.module import GROUP, ReadyModule
from pageant.models.ready.values import check_scales
from pageant.models.tensor_files import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["METHOD", "MicroscaledModule", "twice_e2m1"]

_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)


def twice_e2m1(packed: Tensor) -> Tensor:
    """Return int8 [..., 2 N], twice the numbers of e2m1 in bytes [..., N], the lower four bits of each first."""
    import torch

    from pageant.models.ready.unpacking import nibbles

    table = torch.tensor([*_TWICE, *(-number for number in _TWICE)], dtype=torch.int8)
    return table[nibbles(packed).long()]


@dataclass(frozen=True, kw_only=True)
class MicroscaledModule(ReadyModule):
    """A matrix of e2m1 numbers with an exponent for each 32 inputs."""

    packed: str
    """The part with the numbers: uint8 [outputs, inputs / 2], or [outputs, inputs / 32, 16]."""
    exponents: str
    """The part with the scales: uint8 [outputs, inputs / 32]."""

    def __post_init__(self) -> None:
        blocks = (self.outputs, self.inputs // GROUP, GROUP // 2)
        self.part(self.packed, ("U8",), (self.outputs, self.inputs // 2), blocks)
        self.part(self.exponents, ("U8", "F8_E8M0"), (self.outputs, -(-self.inputs // GROUP)))

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return 5

    @property
    def group(self) -> int:
        return GROUP

    @property
    def scales(self) -> TensorInfo:
        return self.parts[self.exponents]

    def check_values(self) -> None:
        check_scales(self.scales)

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped

        exponents = parts[self.exponents][rows].view(torch.uint8)
        packed = parts[self.packed][rows].flatten(1)
        return Grouped(twice_e2m1(packed), halved_powers(exponents), GROUP)


def halved_powers(exponents: Tensor) -> Tensor:
    """Return half the powers of two that exponents uint8 [...] stand for, float32 [...]: 2 ** (e - 128)."""
    import torch

    return torch.exp2(exponents.to(torch.float64) - 128).float()


class MXFP4(Method):
    """gpt-oss's: experts are quantised, and nothing else is."""

    title = "MXFP4"
    suffixes = ("blocks", "scales")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._excluded = config.texts("modules_to_not_convert")

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        return MicroscaledModule(
            name=name, outputs=outputs, inputs=inputs, parts=parts, packed="blocks", exponents="scales"
        )

    def excludes(self, name: str) -> bool:
        return any(
            fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in self._excluded
        )

    def expects(self, name: str) -> bool:
        return ".experts." in name and not self.excludes(name)


METHOD = MXFP4
