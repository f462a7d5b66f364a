"""The instructions that widen quantised weights, for every number: PTX as its manual defines it, in Python.

Triton's interpreter knows no PTX, so that the kernels' other tests go by another way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pageant.kernels.triton import unpacking

WORD = 0xFFFFFFFF


def permute(a: int, b: int, selector: int) -> int:
    """prmt.b32: each nibble of the selector names a byte of b:a; its upper bit would replicate a sign."""
    pool = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    nibbles = [selector >> 4 * place & 15 for place in range(4)]
    assert max(nibbles) < 8, "no byte is replaced by its sign"
    return int.from_bytes(bytes(pool[nibble] for nibble in nibbles), "little")


def multiply_add(a: int, b: int, c: int) -> int:
    """fma.rn.bf16x2, of which each half is rounded to nearest; here it must be exact."""
    left, right, added = (halves(word).float() for word in (a, b, c))
    exact = left * right + added
    assert torch.equal(exact.bfloat16().float(), exact)
    return int.from_bytes(exact.bfloat16().view(torch.int16).numpy().tobytes(), "little")


def halves(word: int) -> torch.Tensor:
    """The two bfloat16 of a word, the lower one first."""
    return torch.from_numpy(np.frombuffer(word.to_bytes(4, "little"), np.int16).copy()).view(torch.bfloat16)


def lookup(a: int, b: int, c: int, table: int) -> int:
    """lop3.b32: bit (a, b, c) of the table, for each bit."""
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))


INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "add.u32": lambda a, b: a + b & WORD,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "prmt.b32": permute,
    "lop3.b32": lookup,
    "fma.rn.bf16x2": multiply_add,
}


def execute(asm: str, outputs: int, inputs: list[int]) -> list[int]:
    """The output registers after all instructions; $0 is the first output, and inputs follow the outputs."""
    registers = {f"${outputs + place}": word for place, word in enumerate(inputs)}
    for line in filter(None, (line.strip(" {}\n") for line in asm.split(";"))):
        name, _, operands = line.partition(" ")
        if name == ".reg":
            continue
        target, *sources = [operand.strip() for operand in operands.split(",")]
        values = [int(source, 0) if re.match(r"-?\d", source) else registers[source] for source in sources]
        registers[target] = INSTRUCTIONS[name](*values)
    return [registers[f"${place}"] for place in range(outputs)]


def numbers(words: list[int]) -> list[float]:
    return [number for word in words for number in halves(word).tolist()]


def word_of(values: list[int]) -> int:
    return int.from_bytes(bytes(value & 255 for value in values), "little")


@pytest.mark.parametrize(
    ("asm", "order"), [(unpacking.UNPACK_8, [0, 1, 2, 3]), (unpacking.UNPACK_PAIRS_8, [0, 2, 1, 3])]
)
def test_8_bits(asm: str, order: list[int]) -> None:
    for start in range(-128, 128):
        values = [(start + 77 * step + 128) % 256 - 128 for step in range(4)]
        assert numbers(execute(asm, 2, [word_of(values)])) == [values[place] for place in order]


def test_inputs_are_paired_as_the_weights_are() -> None:
    bits = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16().view(torch.int16).numpy()
    low, high = (int.from_bytes(bits[part].tobytes(), "little") for part in (slice(0, 2), slice(2, 4)))
    assert numbers(execute(unpacking.PAIR_INPUTS, 2, [low, high])) == [1, 3, 2, 4]


def test_4_bits() -> None:
    for start in range(256):
        values = [(start + 59 * step) % 256 for step in range(4)]
        found = numbers(execute(unpacking.UNPACK_4, 4, [word_of(values)]))
        assert found == [(value & 15) - 8 for value in values] + [(value >> 4) - 8 for value in values]


@pytest.mark.parametrize("first", range(8))
def test_5_bits(first: int) -> None:
    """The four bytes that a thread has may be from any places of a unit."""
    places = [(first + 3 * step) % 8 for step in range(4)]
    for start in range(0, 256, 3):
        values, fifths, others = (
            [(start * way + 59 * step) % 256 for step in range(4)] for way in (1, 7, 11)
        )
        words = [word_of(one) for one in (values, fifths, others, [1 << place for place in places])]
        low = [
            (value & 15) + 16 * (bits >> place & 1) - 16
            for value, bits, place in zip(values, fifths, places, strict=True)
        ]
        high = [
            (value >> 4) + 16 * (bits >> place & 1) - 16
            for value, bits, place in zip(values, others, places, strict=True)
        ]
        assert numbers(execute(unpacking.UNPACK_5, 4, words)) == low + high
