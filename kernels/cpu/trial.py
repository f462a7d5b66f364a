"""A trial of a compiled library in a process of its own: `python -m pageant.kernels.cpu.trial LIBRARY`.

A system may announce instructions and then refuse them, or compute otherwise than is assumed here. That must
not take an engine down. A level that needs more than ordinary registers is therefore tried once, after it was
compiled. Exits with 0 if products of all shapes are right.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["is_right", "main", "passes"]

Multiply = Callable[[Any, npt.NDArray[np.uint16], npt.NDArray[np.uint16]], npt.NDArray[Any]]

SHAPES = (
    (1, 64, 128),
    (1, 100, 33),
    (3, 70, 95),
    (16, 16, 32),
    (17, 48, 64),
    (40, 33, 31),
    (64, 40, 96),
    (130, 80, 257),
)
TILED_SHAPES = (
    (1, 16, 32),
    (3, 64, 96),
    (16, 48, 64),
    (17, 32, 128),
    (64, 16, 64),
    (65, 48, 96),
    (130, 80, 256),
)


def passes(path: Path) -> bool:
    """Tell whether the library may be used and multiplies correctly, with row-major and tiled weights.

    A row by itself must have the same bits as among others.
    """
    return is_right(ctypes.CDLL(str(path)))


def is_right(library: Any) -> bool:
    """Tell the same of a library that is loaded."""
    if not library.pageant_allowed():
        return False
    return all(_multiplies(library, _multiply, 1e-4, *shape) for shape in SHAPES) and all(
        _multiplies(library, _multiply_tiles, 2**-8, *shape) for shape in TILED_SHAPES
    )


def _multiplies(library: Any, multiply: Multiply, error: float, rows: int, outputs: int, inputs: int) -> bool:
    generator = np.random.default_rng(rows)
    x, weight = (_bfloat16(generator.normal(size=(count, inputs))) for count in (rows, outputs))
    found = multiply(library, x, weight)
    right = _widened(x) @ _widened(weight).T
    alone = multiply(library, x[-1:].copy(), weight)
    return bool(np.allclose(found, right, rtol=error, atol=1e-3)) and bool(
        np.array_equal(alone[0], found[-1])
    )


def _multiply(
    library: Any, x: npt.NDArray[np.uint16], weight: npt.NDArray[np.uint16]
) -> npt.NDArray[np.float32]:
    """Return the product, float32 [rows, outputs], unrounded."""
    (rows, inputs), outputs = x.shape, len(weight)
    y = np.empty((rows, outputs), np.float32)
    pointers = [x.ctypes.data, inputs, weight.ctypes.data, inputs, None, None, y.ctypes.data]
    library.pageant_linear_bf16(*map(ctypes.c_void_p, [*pointers, rows, inputs, outputs, None]))
    return y


def _multiply_tiles(
    library: Any, x: npt.NDArray[np.uint16], weight: npt.NDArray[np.uint16]
) -> npt.NDArray[np.float64]:
    """Return the product rounded to bfloat16, with the weight in tiles (see `pageant.kernels.tiled`)."""
    (rows, inputs), outputs = x.shape, len(weight)
    tiles = weight.reshape(outputs // 16, 16, inputs // 32, 16, 2).transpose(0, 2, 3, 1, 4).copy()
    y = np.empty((rows, outputs), np.uint16)
    pointers = [x.ctypes.data, inputs, tiles.ctypes.data, None, y.ctypes.data, None]
    library.pageant_tiled_linear(*map(ctypes.c_void_p, [*pointers, rows, inputs, outputs, None]))
    return _widened(y)


def _bfloat16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Convert to bfloat16 by truncation, which is exact enough here."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def main(path: str) -> int:
    """Return the exit code."""
    return 0 if passes(Path(path)) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
