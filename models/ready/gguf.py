"""GGUF (llama.cpp): a matrix [outputs, inputs] is rows of blocks, in one tensor of bytes.

Types whose blocks are whole numbers with a scale fit our layouts: Q4_0 in 4 bits, Q5_0 and MXFP4 in 5, Q8_0 and tables
of whole numbers (IQ4_NL, IQ4_XS) in 8. The others have minima, or scales for 16 numbers, and are requantised to 8 bits;
or dequantised in a small model, which takes little memory and loses more by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pageant.models.config import Config
from pageant.models.gguf.types import FLOATS, READABLE, block_numbers
from pageant.models.ready.method import Method
from pageant.models.ready.module import GROUP, Fidelity, ReadyModule, wrong_part
from pageant.models.tensor_files import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["METHOD"]

_BITS: dict[str, Literal[8, 5, 4]] = {
    **{"Q4_0": 4, "TQ1_0": 4, "TQ2_0": 4, "Q5_0": 5, "MXFP4": 5},
    **{"Q8_0": 8, "IQ4_NL": 8, "IQ4_XS": 8},
}
"""Bits that hold the codes of a type; the others' are no whole numbers with a scale."""


@dataclass(frozen=True, kw_only=True)
class BlockModule(ReadyModule):
    """A matrix of blocks."""

    def __post_init__(self) -> None:
        self.part(
            "weight", tuple(kind for kind in READABLE if kind not in FLOATS), (self.outputs, self.inputs)
        )

    @property
    def kind(self) -> str:
        """The type of its blocks."""
        return self.scales.dtype

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return _BITS.get(self.kind)

    @property
    def group(self) -> int:
        return GROUP

    @property
    def scales(self) -> TensorInfo:
        return self.parts["weight"]

    @property
    def fidelity(self) -> Fidelity:
        if not self.fits:
            return "requantised"
        return "exact" if self.kind == "MXFP4" else "rounded"

    def check_values(self) -> None:
        """Do nothing: scales lie between the codes, and are checked as they are read."""

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.blocks import CODES, WEIGHTS
        from pageant.models.ready.grouped import Grouped

        blocks = torch.unflatten(parts["weight"][rows], 1, (self.inputs // block_numbers(self.kind), -1))
        if self.bits is not None:
            values, scales = CODES[self.kind](blocks)
            some = Grouped(values, scales, GROUP)
        else:
            values = WEIGHTS[self.kind](blocks)
            scales = torch.ones(len(values), 1)
            some = Grouped(values, scales, self.inputs)
        if not torch.isfinite(scales).all() or (
            values.is_floating_point() and not torch.isfinite(values).all()
        ):
            found = f"a scale that is no finite number, in rows {rows.start} to {rows.stop}"
            raise wrong_part(self.scales, found, "finite scales")
        return some


class GGUF(Method):
    """See the module."""

    suffixes = ()
    dequantised_numbers_max = 1 << 29  # 1 GiB of 16 bits each

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.title = f"GGUF ({', '.join(config.texts('types'))})"

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        return BlockModule(name=name, outputs=outputs, inputs=inputs, parts=parts)

    def excludes(self, name: str) -> bool:
        return False

    def expects(self, name: str) -> bool:
        """Return False: types of tensors differ, and a float one is as good as another."""
        return False


METHOD = GGUF
