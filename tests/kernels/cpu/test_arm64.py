"""The C++ kernels on ARM64: every source compiles, and functions compute there what they do here."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pageant.kernels.cpu.library import load_library
from tests.kernels.cpu import guest

pytestmark = [
    pytest.mark.skipif(guest.COMPILER is None, reason="there is no g++-aarch64-linux-gnu"),
    pytest.mark.skipif(guest.EMULATOR is None, reason="there is no qemu-user"),
]
ROWS, INPUTS, OUTPUTS = 19, 128, 80
TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}
Array = npt.NDArray[Any]


def _numbers(kind: str, *shape: int) -> Array:
    """Return normal numbers of a type; those of bfloat16 as their bits."""
    made = np.random.default_rng(shape).normal(size=shape).astype(np.float32)
    return (made.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else made.astype(TYPES[kind])


def _empty(kind: str, *shape: int) -> Array:
    return np.zeros(shape, TYPES[kind])


def _linear(kind: str) -> list[guest.Argument]:
    x, weight, bias = _numbers(kind, ROWS, INPUTS), _numbers(kind, OUTPUTS, INPUTS), _numbers(kind, OUTPUTS)
    return [x, INPUTS, weight, INPUTS, bias, _empty(kind, ROWS, OUTPUTS), None, ROWS, INPUTS, OUTPUTS, None]


def _norm(kind: str) -> list[guest.Argument]:
    x, weight = _numbers(kind, ROWS, INPUTS), _numbers(kind, INPUTS)
    return [x, INPUTS, _empty(kind, ROWS, INPUTS), INPUTS, ROWS, INPUTS, weight, None, 1e-6]


def _activation(kind: str) -> list[guest.Argument]:
    return [_numbers(kind, ROWS, 2 * INPUTS), 2 * INPUTS, _empty(kind, ROWS, INPUTS), INPUTS, ROWS, INPUTS]


def _quantising(kind: str) -> list[guest.Argument]:
    values, scales = np.zeros((OUTPUTS, INPUTS), np.uint8), _empty("bf16", OUTPUTS, INPUTS)
    return [_numbers(kind, OUTPUTS, INPUTS), INPUTS, OUTPUTS, INPUTS, 8, 0, values, scales]


def _quantised(kind: str) -> list[guest.Argument]:
    *_, values, scales = _here(f"quantize_{kind}", _quantising(kind))
    x, y = _numbers(kind, ROWS, INPUTS), _empty(kind, ROWS, OUTPUTS)
    return [x, INPUTS, values, None, scales, 8, 0, None, y, None, ROWS, INPUTS, OUTPUTS, None, 0]


def _attention(kind: str) -> list[guest.Argument]:
    """Two sequences: one decodes in two blocks that lie apart, one is prefilled."""
    heads, kv_heads, head_dim, block_size = 4, 2, 32, 16
    keys, values = (_numbers(kind, 4, kv_heads, block_size, head_dim) for _ in range(2))
    starts, lengths = np.array([0, 1, 8], np.int32), np.array([21, 7], np.int32)
    tables, positions = np.array([[3, 1], [2, 0]], np.int32), np.array([20, *range(7)], np.int64)
    query, output = _numbers(kind, 8, heads * head_dim), _empty(kind, 8, heads * head_dim)
    columns = heads * head_dim
    sizes = [2, heads, kv_heads, head_dim, head_dim, block_size, 0, 0]
    places = [starts, lengths, tables, 2, positions, None]
    return [query, columns, keys, values, output, columns, *places, *sizes, None, 0.2, 0.0]


def _sampling() -> list[guest.Argument]:
    rows, vocab_size = 24, 500
    logits = 3 * _numbers("f32", rows, vocab_size)
    temperature = np.repeat(np.array([0.0, 0.7, 1.3], np.float32), rows // 3)
    top_k, top_p, min_p = (
        np.full(rows, 40, np.int32),
        np.full(rows, 0.9, np.float32),
        np.zeros(rows, np.float32),
    )
    seed, sample, position = np.arange(rows) * 7919, np.zeros(rows, np.int32), np.arange(rows) + 3
    noise = [temperature, top_k, top_p, min_p, seed, sample, position]
    return [logits, vocab_size, None, rows, vocab_size, *noise, None, None, 0, np.zeros(rows, np.int64)]


CALLS = {
    **{f"linear_{kind}": _linear for kind in TYPES},
    **{f"rms_norm_{kind}": _norm for kind in TYPES},
    **{f"silu_and_mul_{kind}": _activation for kind in TYPES},
    **{f"quantize_{kind}": _quantising for kind in TYPES},
    **{f"quantized_linear_{kind}": _quantised for kind in TYPES},
    **{f"attention_{kind}": _attention for kind in TYPES},
    "sample": lambda _: _sampling(),
}
ERRORS = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


def _here(name: str, arguments: list[guest.Argument]) -> list[Array]:
    """Call a function of this processor's portable library. Return copies of the arrays as it left them."""
    function = load_library("portable")._library[f"pageant_{name}"]
    copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    kinds = {float: ctypes.c_double, int: ctypes.c_int64, type(None): ctypes.c_void_p}
    function(
        *(
            ctypes.c_void_p(one.ctypes.data) if isinstance(one, np.ndarray) else kinds[type(one)](one)
            for one in copies
        )
    )
    return [one for one in copies if isinstance(one, np.ndarray)]


def _widened(values: Array, kind: str) -> Array:
    if kind == "bf16" and values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


@pytest.fixture(scope="module")
def program() -> Path:
    return guest.build(sorted(CALLS))


@pytest.mark.parametrize("name", CALLS)
def test_a_function_computes_on_arm64_what_it_does_here(program: Path, name: str):
    kind = name.rpartition("_")[2]
    arguments = CALLS[name](kind)
    right, found = _here(name, arguments), guest.call(program, name, arguments)
    before = [one for one in arguments if isinstance(one, np.ndarray)]
    assert any(not np.array_equal(was, now) for was, now in zip(before, right, strict=True))
    for here, there in zip(right, found, strict=True):
        if here.dtype.kind in "iu" and (kind != "bf16" or here.dtype != np.uint16):
            np.testing.assert_array_equal(there, here)
        else:
            error = ERRORS.get(kind, 1e-5)
            np.testing.assert_allclose(_widened(there, kind), _widened(here, kind), error, error)
