"""The tensors of a GGUF file as the loader takes them: stacks of experts come apart. Knows no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pageant.models.errors import CheckpointError
from pageant.models.gguf.container import GGUFFile, Tensor, read_gguf
from pageant.models.gguf.types import READABLE
from pageant.models.tensor_files import TensorInfo

__all__ = ["read_tensors"]

_STACK = re.compile(r"(blk\.\d+\.)ffn_(gate|up|down|gate_up)_exps\.(weight|bias)")
_EXPERT = re.compile(r"(blk\.\d+\.)ffn_(gate|up|down)\.(\d+)\.weight")
"""Experts of files from before there were stacks."""
_ROW = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_OTHERS = "Use a file of another quantisation, such as Q4_K_M or Q8_0."


def read_tensors(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a file by name: `blk.0.ffn_up_exps.3.weight` is part of a stack.

    Raises CheckpointError for a file that is not whole, and for types of tensors that cannot be read.
    """
    file = read_gguf(path)
    return {info.name: info for tensor in file.tensors.values() for info in _infos(file, tensor)}


def _infos(file: GGUFFile, tensor: Tensor) -> Iterator[TensorInfo]:
    if tensor.kind.name not in READABLE:
        raise CheckpointError(
            file.path, f"{tensor.name} has type {tensor.kind.name}", f"one of {', '.join(READABLE)}", _OTHERS
        )
    if stack := _STACK.fullmatch(tensor.name):
        yield from _experts(file.path, tensor, *stack.groups())
        return
    name, shape = tensor.name, tensor.shape
    if expert := _EXPERT.fullmatch(name):
        prefix, part, number = expert.groups()
        name = f"{prefix}ffn_{part}_exps.{number}.weight"
    if _ROW.fullmatch(name) and len(shape) == 1:  # a matrix of one row, which writers squeeze
        shape = (1, *shape)
    yield TensorInfo(file.path, name, tensor.kind.name, shape, tensor.num_bytes, tensor.offset)


def _experts(path: Path, tensor: Tensor, prefix: str, part: str, kind: str) -> Iterator[TensorInfo]:
    """Yield each expert's part of a stack, and gate and up apart where they are one."""
    parts = part.split("_")
    experts, *inner = tensor.shape
    if len(inner) != (2 if kind == "weight" else 1) or inner[0] % len(parts):
        found = f"{tensor.name} has shape {list(tensor.shape)}"
        raise CheckpointError(path, found, "a stack of experts", "Download the file again.")
    shape = (inner[0] // len(parts), *inner[1:])
    size = tensor.num_bytes // experts // len(parts)
    for expert in range(experts):
        for index, name in enumerate(parts):
            offset = tensor.offset + (expert * len(parts) + index) * size
            full = f"{prefix}ffn_{name}_exps.{expert}.{kind}"
            yield TensorInfo(path, full, tensor.kind.name, shape, size, offset)
