"""The shapes of the kernels' tiles: a table, chosen by device, so that nothing is searched for at start.

The keys are families of devices rather than names: what decides is how much shared memory a program can have
and whether products are Hopper's. `scripts/gpu-check FOLDER --only tune` times the alternatives on
the device at hand and prints lines for this table.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch

from pageant.kernels.triton.launching import interpreted, next_power_of_2

__all__ = [
    "Attention",
    "Product",
    "Quantized",
    "attention_tiles",
    "family",
    "product_tiles",
    "quantized_tiles",
]

Family = Literal["interpreter", "hopper", "ampere", "consumer"]


class Attention(NamedTuple):
    """Query rows (a token's head each) and context entries of a tile; threads / 32; tiles in flight."""

    rows: int
    entries: int
    warps: int
    stages: int


class Product(NamedTuple):
    """Rows, columns and depth of a matrix product's tile; threads / 32; tiles in flight."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Quantized(NamedTuple):
    """Rows, columns and depth of the tile of a product with a quantised weight; threads / 32; tiles in flight; whether
    the weight is the product's first operand, from registers."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    weights_first: bool


# (family, kernel), for elements of two bytes: by the head's size, the first that is large enough. The pipeliner
# gives half of the stages to the block table, on which keys and values wait: 5 keep two tiles in flight, 7
# three. None of these spills more than a few words; scripts/cubins/variants.py says what each takes.
_ATTENTION: dict[tuple[Family, str], dict[int, Attention]] = {
    ("hopper", "prefill"): {
        64: Attention(128, 128, 8, 5),
        128: Attention(128, 64, 8, 5),
        256: Attention(128, 32, 8, 5),
        512: Attention(64, 16, 8, 3),
    },
    ("hopper", "decode"): {
        64: Attention(16, 64, 4, 7),
        128: Attention(16, 64, 4, 7),
        256: Attention(16, 32, 4, 7),
        512: Attention(16, 16, 4, 5),
    },
    ("ampere", "prefill"): {
        64: Attention(128, 64, 8, 5),
        128: Attention(128, 64, 8, 5),
        256: Attention(64, 32, 8, 5),
        512: Attention(32, 16, 8, 3),
    },
    ("ampere", "decode"): {
        64: Attention(16, 64, 4, 7),
        128: Attention(16, 64, 4, 5),
        256: Attention(16, 32, 4, 5),
        512: Attention(16, 16, 4, 5),
    },
    ("consumer", "prefill"): {
        64: Attention(128, 64, 8, 3),
        128: Attention(128, 32, 8, 5),
        256: Attention(64, 32, 8, 3),
        512: Attention(32, 16, 8, 3),
    },
    ("consumer", "decode"): {
        64: Attention(16, 64, 4, 5),
        128: Attention(16, 32, 4, 5),
        256: Attention(16, 16, 4, 5),
        512: Attention(16, 16, 4, 3),
    },
}
# float32 is for exactness, and alike everywhere.
_FLOAT32 = {
    64: Attention(32, 32, 4, 3),
    128: Attention(16, 32, 4, 3),
    256: Attention(16, 16, 4, 3),
    512: Attention(16, 16, 8, 1),
}
_INTERPRETED = Attention(16, 16, 1, 1)

# (family): by the mean number of rows for each weight matrix, the first that is large enough.
_PRODUCT: dict[Family, dict[int, Product]] = {
    "hopper": {16: Product(16, 64, 128, 4, 4), 64: Product(64, 64, 64, 4, 4), 1 << 30: Product(128, 128, 64, 8, 3)},
    "ampere": {16: Product(16, 64, 128, 4, 4), 64: Product(64, 64, 64, 4, 4), 1 << 30: Product(128, 64, 64, 8, 3)},
    "consumer": {16: Product(16, 64, 64, 4, 3), 64: Product(64, 64, 32, 4, 3), 1 << 30: Product(128, 64, 32, 8, 2)},
}  # fmt: skip
# By the number of rows, the first that is large enough. Two warps share a program where the weight comes first: four
# would make it a product of Hopper's, which reads the weight from shared memory. Each warp has many columns, so that x,
# which it reads whole, costs little. cubins.variants counts the instructions for each weight.
_QUANTIZED: dict[int, Quantized] = {
    8: Quantized(8, 128, 128, 2, 4, True),
    16: Quantized(16, 128, 128, 2, 4, True),
    32: Quantized(32, 64, 64, 2, 4, True),
    64: Quantized(64, 128, 128, 4, 3, False),
    1 << 30: Quantized(128, 128, 128, 8, 3, False),
}
_QUANTIZED_FLOAT16 = Quantized(16, 64, 64, 4, 3, True)
_QUANTIZED_FLOAT32 = Quantized(16, 32, 64, 4, 2, True)
_QUANTIZED_INTERPRETED = Quantized(16, 16, 64, 1, 1, True)
_PRODUCT_FLOAT32 = Product(16, 32, 32, 4, 2)
_PRODUCT_INTERPRETED = Product(16, 16, 16, 1, 1)


@functools.cache
def family(device: torch.device) -> Family:
    """Return which column of the table a device reads."""
    if interpreted(device):
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major, properties.minor
    if capability in ((8, 6), (8, 9)) or capability >= (12, 0):
        return "consumer"  # 99 KiB of shared memory for a program, where the others have 160 or more
    return "hopper" if capability >= (9, 0) else "ampere"


@functools.cache
def attention_tiles(
    kernel: Literal["prefill", "decode"], head_dim: int, dtype: torch.dtype, device: torch.device
) -> Attention:
    """Return the tile of an attention kernel."""
    found = family(device)
    if found == "interpreter":
        return _INTERPRETED
    table = _FLOAT32 if dtype.itemsize == 4 else _ATTENTION[found, kernel]
    tile = next_power_of_2(max(64, head_dim))
    if tile not in table:
        raise ValueError(f"the triton kernels know heads of up to {max(table)}, found {head_dim}")
    return table[tile]


def product_tiles(rows: int, dtype: torch.dtype, device: torch.device) -> Product:
    """Return the tile of a product with `rows` rows for each weight matrix, on average."""
    found = family(device)
    if found == "interpreter":
        return _PRODUCT_INTERPRETED
    if dtype.itemsize == 4:
        return _PRODUCT_FLOAT32
    return next(tiles for most, tiles in _PRODUCT[found].items() if rows <= most)


def quantized_tiles(rows: int, dtype: torch.dtype, device: torch.device) -> Quantized:
    """Return the tile of a product of so many rows with a quantised weight."""
    if family(device) == "interpreter":
        return _QUANTIZED_INTERPRETED
    if dtype != torch.bfloat16:
        return _QUANTIZED_FLOAT32 if dtype == torch.float32 else _QUANTIZED_FLOAT16
    return next(tiles for most, tiles in _QUANTIZED.items() if rows <= most)
