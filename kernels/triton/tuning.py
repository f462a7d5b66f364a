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
    "ragged_tiles",
]

Family = Literal["interpreter", "hopper", "ampere", "consumer"]


class Attention(NamedTuple):
    """Query rows (a token's head each) and context entries of a tile; threads / 32; tiles in flight; whether entries
    that all rows see are taken apart, without masks."""

    rows: int
    entries: int
    warps: int
    stages: int
    parted: bool = True


class Product(NamedTuple):
    """Rows, columns and depth of a matrix product's tile; threads / 32; tiles in flight."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Quantized(NamedTuple):
    """Rows, columns and depth of the tile of a product with a quantised weight; threads / 32; tiles in flight.

    A program has one slice of the inputs for all warps, or one for each. Unless sliced, the weight may be the product's
    second operand, from shared memory. It must be on Hopper where four warps make a product of 64 columns or more: that
    is still reading its registers when the next tile is widened, and one such tile gave wrong results on an H200.
    `programs` are those wanted for each multiprocessor.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    slices: int = 1
    weights_first: bool = True
    programs: int = 4


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
        64: Attention(16, 128, 4, 5),
        128: Attention(16, 32, 4, 7, parted=False),
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
# (family, bits): by the number of rows, the first that is large enough; those of 8 bits where a family has no others.
# Few rows are a matter of bandwidth: for a single one each warp has a slice of the inputs to itself, or programs are
# small, so that many wait for memory at once. For many rows Hopper's products read both tiles from shared memory.
# Elsewhere the weight is first, from the registers in which it was widened. Hopper's tiles are the best of what
# `--only tune` timed on an H200, but for those that were wrong there: with 5 bits all but one, with slices those of
# several rows and of inputs that are no whole slices, and those in which a warp group has the weight in registers (see
# `Quantized`).
_QUANTIZED: dict[tuple[Family, int], dict[int, Quantized]] = {
    ("hopper", 8): {
        1: Quantized(8, 16, 128, 4, 3, slices=4),
        16: Quantized(16, 32, 256, 2, 4, programs=12),
        64: Quantized(64, 64, 128, 4, 4, weights_first=False, programs=2),
        128: Quantized(128, 128, 64, 4, 3, weights_first=False, programs=2),
        1 << 30: Quantized(256, 128, 64, 8, 4, weights_first=False, programs=1),
    },
    ("hopper", 5): {1 << 30: Quantized(64, 128, 128, 4, 3, weights_first=False, programs=2)},
    ("hopper", 4): {
        1: Quantized(8, 16, 256, 4, 3, slices=4),
        16: Quantized(16, 32, 256, 2, 4, programs=12),
        64: Quantized(64, 128, 128, 4, 3, weights_first=False, programs=2),
        128: Quantized(128, 128, 64, 4, 3, weights_first=False, programs=2),
        1 << 30: Quantized(256, 128, 64, 8, 4, weights_first=False, programs=1),
    },
    ("ampere", 8): {
        1: Quantized(8, 32, 128, 8, 3, slices=8, programs=2),
        16: Quantized(16, 128, 128, 2, 4),
        64: Quantized(64, 64, 64, 4, 3),
        1 << 30: Quantized(128, 128, 64, 8, 3, programs=2),
    },
    ("consumer", 8): {
        1: Quantized(8, 32, 128, 4, 3, slices=4),
        16: Quantized(16, 128, 128, 2, 4),
        64: Quantized(64, 64, 64, 4, 3),
        1 << 30: Quantized(128, 128, 64, 8, 3, programs=2),
    },
    ("interpreter", 8): {8: Quantized(16, 16, 64, 1, 1, slices=4), 1 << 30: Quantized(16, 16, 64, 1, 1)},
}
_RAGGED_ROWS = 17  # for which no family's tiles are of few rows
_QUANTIZED_FLOAT16 = Quantized(16, 32, 64, 4, 3)
_QUANTIZED_FLOAT32 = Quantized(16, 32, 64, 4, 2)
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


def quantized_tiles(rows: int, bits: int, dtype: torch.dtype, device: torch.device) -> Quantized:
    """Return the tile of a product of so many rows with a weight of 8, 5 or 4 bits."""
    found = family(device)
    if dtype != torch.bfloat16 and found != "interpreter":
        return _QUANTIZED_FLOAT32 if dtype == torch.float32 else _QUANTIZED_FLOAT16
    by_rows = _QUANTIZED.get((found, bits)) or _QUANTIZED[found, 8]
    return next(tiles for most, tiles in by_rows.items() if rows <= most)


def ragged_tiles(rows: int, bits: int, dtype: torch.dtype, device: torch.device) -> Quantized:
    """Return the tile where the inputs are no whole tiles or slices: that of more rows, which has no slices."""
    return quantized_tiles(max(rows, _RAGGED_ROWS), bits, dtype, device)
