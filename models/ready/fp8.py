"""FP8 weights as DeepSeek, Qwen, Mistral and FBGEMM publish them: e4m3 with a scale for a tensor, a row or a block.

    weight             float8_e4m3 [outputs, inputs]
    weight_scale       float32 or bfloat16, one number, or [outputs, 1]
    weight_scale_inv   float32, bfloat16 or float8_e8m0 [outputs / 128, inputs / 128], rounded up: to multiply by, too

Blocks at the end of rows and columns may be ragged: DeepSeek's kv_a_proj_with_mqa has 576 rows. Our layouts hold no
e4m3 numbers: weights are requantised to 8 bits. Scales of activations are ignored, since activations stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pageant.models.config import Config
from pageant.models.ready.method import Method, is_part
from pageant.models.ready.module import ReadyModule, wrong_part
from pageant.models.ready.values import check_scales
from pageant.models.tensor_files import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["IGNORED", "METHOD", "Float8Module", "read_block"]

IGNORED = (".input_scale", ".activation_scale", ".input_scale_ub", ".act_scale")
"""How the names of scales of activations end, which stay as they are here."""
_SCALES = ("F32", "BF16", "F16")
_BLOCK_SCALES = (*_SCALES, "F8_E8M0")


@dataclass(frozen=True, kw_only=True)
class Float8Module(ReadyModule):
    """A module of e4m3 numbers."""

    block: tuple[int, int] | None
    """Rows and columns that share a scale; None is one scale for the tensor, or one a row."""
    role: str
    """The part with the scales."""

    def __post_init__(self) -> None:
        self.part("weight", ("F8_E4M3",), (self.outputs, self.inputs))
        if self.block is not None:
            down, along = self.block
            self.part(self.role, _BLOCK_SCALES, (-(-self.outputs // down), -(-self.inputs // along)))
        else:
            self.part(self.role, _SCALES, (), (1,), (1, 1), (self.outputs, 1), (self.outputs,))

    @property
    def described(self) -> str:
        blocks = "" if self.block is None else f", blocks of {self.block[0]} by {self.block[1]}"
        return f"{super().described}{blocks}"

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return None

    @property
    def group(self) -> int:
        return self.inputs if self.block is None else self.block[1]

    @property
    def scales(self) -> TensorInfo:
        return self.parts[self.role]

    def check_values(self) -> None:
        check_scales(self.scales)

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped

        values = parts["weight"][rows].float()
        scales = parts[self.role].float()
        if self.block is not None:
            scales = scales[torch.arange(rows.start, rows.stop) // self.block[0]]
        elif scales.numel() == 1:
            scales = scales.view(1, 1).expand(len(values), 1)
        else:
            scales = scales.view(-1, 1)[rows]
        return Grouped(values, scales, self.group)


class Float8(Method):
    """See the module."""

    title = "FP8"
    suffixes = ("weight_scale", "weight_scale_inv")
    ignored = IGNORED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        config.refuse("fmt", "e4m3", "Use a checkpoint of e4m3 weights.")
        self._block = read_block(config, "weight_block_size")
        names = ("ignored_layers", "modules_to_not_convert")
        self._excluded = tuple(name for key in names for name in config.texts(key))

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        roles = [role for role in self.suffixes if role in parts]
        if len(roles) > 1:
            raise wrong_part(parts[roles[1]], f"{roles[0]} beside it", "one tensor of scales")
        role = roles[0] if roles else self.suffixes[self._block is not None]
        return Float8Module(
            name=name, outputs=outputs, inputs=inputs, parts=parts, block=self._block, role=role
        )

    def excludes(self, name: str) -> bool:
        return any(is_part(part, name) for part in self._excluded)

    def expects(self, name: str) -> bool:
        # Heads and embeddings are left out without a word.
        return ".layers." in f".{name}" and not self.excludes(name)


def read_block(config: Config, key: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block, or None where there are no blocks."""
    block = config.counts(key)
    if not block:
        return None
    if len(block) != 2 or 0 in block:
        raise config.wrong(key, list(block), "two whole numbers from 1 up")
    return block[0], block[1]


METHOD = Float8
