"""The CPU backend: C++ kernels for float32, bfloat16 and float16, compiled on first use.

Each function takes the arguments of `pageant.kernels.base.Kernels`. What the C++ does not do (other
dtypes, `rope` without a cache) goes to the reference. The wrappers are as short as they are since a small
model's step is mostly made of them: no checks, hardly a view, and one allocation where there is a result (by
`new_empty` with sizes one by one, which takes half the time of `torch.empty` with a tuple).

Row invariance: a row's bits do not depend on what else is in the step nor on how its prompt was chunked, where
all is computed here. That is so with AVX512-BF16, and in float32 with AVX-512, where it costs nothing. Below,
`linear` of many rows is torch's, which is faster there, and with AMX a quantised product of many rows does not round x
as one of few does; `deterministic=True` does without either.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import (
    AttentionBatch,
    HeadNorms,
    KVCache,
    SamplingTensors,
    TokenLogprobs,
    TokenMasks,
)
from pageant.kernels.cpu.arena import Arena
from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.library import Functions, Library, load_library
from pageant.kernels.cpu.products import (
    expert_weights,
    low_rank_products,
    product,
    quantized_gated_product,
    quantized_product,
    tiled_product,
)
from pageant.kernels.cpu.recording import RecordedLibrary, Recorder, playback
from pageant.kernels.low_rank import Addition
from pageant.kernels.quantized import QuantizedWeight, Weight, empty_quantized, in_parts
from pageant.kernels.reference import ReferenceKernels
from pageant.kernels.tiled import LinearWeight, TiledWeight

__all__ = ["BuildError", "CpuKernels"]

_ALL = 1 << 62
_LARGE = 1 << 18  # numbers of a result, from which on its memory is kept
_LINE = 64  # bytes of the caches'
_QUANTIZED_TOGETHER = 8 << 20  # numbers
_TILE_ROWS = 16  # of x, that a tile takes
_EMPTY = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
_NO_NORMS = (None, None, False, 0.0)
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
# Up to how many rows `linear` is ours, (float32, bfloat16): measured on a Zen 4 (scripts/bench/kernels.py).
_ROWS_OWN_MAX = {
    "amx": (_ALL, _ALL),
    "emulated_amx": (_ALL, _ALL),
    "avx512_bf16": (_ALL, _ALL),
    "avx512_vnni": (_ALL, 8),
    "avx512": (_ALL, 8),
    "avx2": (32, 4),
    "portable": (4, 4),
}
# Quantised products of bfloat16 with more rows are by tiles of unpacked weights, on the level `amx`.
_ROWS_ALIKE = 80


class CpuKernels(ReferenceKernels):
    """Implements `pageant.kernels.base.Kernels`, whose docstrings are the contract.

    Raises BuildError where the library can be neither found nor compiled.
    """

    name = "cpu"

    def __init__(self, level: str | None = None, *, deterministic: bool = False) -> None:
        self._library = load_library(level)
        self.level = self._library.level
        self._functions = _functions(self._library)
        self._arena = Arena(lasting=True)
        self._large: Arena | None = Arena(lasting=False)
        float32_max, bfloat16_max = (_ALL, _ALL) if deterministic else _ROWS_OWN_MAX[self.level]
        self.rows_own_max = {torch.float32: float32_max, torch.bfloat16: bfloat16_max, torch.float16: _ALL}
        self.rows_alike = _ALL if deterministic else _ROWS_ALIKE
        self.tiled_dtypes = frozenset({torch.bfloat16} if self._library.tiled_linear else ())
        takers = (dtype for dtype, functions in self._functions.items() if functions.takes_tiles)
        self.quantized_tiles = frozenset(takers)

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Call `run`, and return what does the same to the same memory again, without Python.

        All that comes from here shares memory for intermediate results, and so does what each returns: good until
        the next call. Not to be called while another thread uses these kernels.

        Raises NotRecordable (a RuntimeError) where something is computed outside of the library.
        """
        library, functions, large = self._library, self._functions, self._large
        recorded = RecordedLibrary(library)
        self._library = cast(Library, recorded)
        self._functions = _functions(self._library)
        self._large = None
        try:
            with Recorder(self._arena):
                result = run()
        finally:
            self._library, self._functions, self._large = library, functions, large
        play = playback(library, recorded.calls)

        def again() -> Tensor:
            play()
            return result

        return again

    def _empty(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """Room for a result."""
        if self._large is None or rows * columns < _LARGE:
            return _EMPTY[dtype].new_empty(rows, columns)
        return self._large.empty((rows, columns), dtype)

    def _rows_apart(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """Room for what will be multiplied. Its rows do not share sets of the caches, where tiles read many at once."""
        line = _LINE // dtype.itemsize
        if rows <= _TILE_ROWS or columns % (2 * line) != 0 or dtype not in self.tiled_dtypes:
            return self._empty(dtype, rows, columns)
        return self._empty(dtype, rows, columns + line)[:, :columns]

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """See `Kernels.linear`."""
        functions, rows = self._functions.get(x.dtype), x.shape[0]
        if isinstance(weight, QuantizedWeight):
            if functions is None:
                return super().linear(x, weight, bias)
            if weight.in_tiles and x.dtype not in self.quantized_tiles:
                return self.linear(x, weight.in_rows(), bias)
            y = self._empty(x.dtype, rows, weight.shape[0])
            quantized_product(functions, x, weight, bias, y.data_ptr(), None, self.rows_alike)
            return y
        if isinstance(weight, TiledWeight):
            if x.dtype not in self.tiled_dtypes:
                return self.linear(x, weight.plain(), bias)
            y = self._empty(x.dtype, rows, weight.shape[0])
            tiled_product(self._library, x, weight, bias, y)
            return y
        if functions is None or rows > self.rows_own_max[x.dtype]:
            return F.linear(x, weight, bias)
        y = self._empty(x.dtype, rows, weight.shape[0])
        product(functions, x, weight, bias, y.data_ptr(), None)
        return y

    def gated_linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, activation: str) -> Tensor:
        """See `Kernels.gated_linear`."""
        rows = x.shape[0]
        if x.dtype in self.tiled_dtypes:
            if isinstance(weight, TiledWeight):
                y = self._rows_apart(x.dtype, rows, weight.shape[0] // 2)
                tiled_product(self._library, x, weight, bias, y, _ACTIVATIONS[activation])
                return y
            if isinstance(weight, QuantizedWeight) and weight.in_tiles and rows > self.rows_alike:
                y = self._rows_apart(x.dtype, rows, weight.shape[0] // 2)
                quantized_gated_product(self._library, x, weight, bias, y, _ACTIVATIONS[activation])
                return y
        return super().gated_linear(x, weight, bias, activation)

    def add_low_rank(self, x: Tensor, y: Tensor, additions: Sequence[Addition]) -> None:
        """See `Kernels.add_low_rank`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            super().add_low_rank(x, y, additions)
        else:
            low_rank_products(functions, x, y, additions)

    def logits(self, hidden: Tensor, weight: Weight) -> Tensor:
        """See `Kernels.logits`."""
        functions, rows = self._functions.get(hidden.dtype), hidden.shape[0]
        whole = isinstance(weight, Tensor)
        if functions is None or (whole and rows > self.rows_own_max[hidden.dtype]):
            return super().logits(hidden, weight)
        if (
            isinstance(weight, QuantizedWeight)
            and weight.in_tiles
            and hidden.dtype not in self.quantized_tiles
        ):
            return self.logits(hidden, weight.in_rows())
        logits = self._empty(torch.float32, rows, weight.shape[0])
        if isinstance(weight, QuantizedWeight):
            quantized_product(functions, hidden, weight, None, None, logits.data_ptr(), self.rows_alike)
        else:
            product(functions, hidden, weight, None, None, logits.data_ptr())
        return logits

    def embed(self, token_ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
        """See `Kernels.embed`."""
        functions = self._functions.get(dtype)
        if functions is None or (isinstance(weight, Tensor) and weight.dtype != dtype):
            return super().embed(token_ids, weight, dtype)
        rows, inputs = len(token_ids), weight.shape[1]
        embedded = self._empty(dtype, rows, inputs)
        if isinstance(weight, Tensor):
            self._library.gather_rows(
                weight.data_ptr(), inputs * dtype.itemsize, token_ids.data_ptr(), rows, embedded.data_ptr()
            )
            return embedded
        functions.embed(
            token_ids.data_ptr(),
            rows,
            weight.values.data_ptr(),
            weight.scales.data_ptr(),
            weight.bits,
            weight.in_tiles,
            embedded.data_ptr(),
            inputs,
        )
        return embedded

    def quantize(self, weight: Tensor, into: QuantizedWeight) -> None:
        """See `Kernels.quantize`."""
        functions = self._functions.get(weight.dtype)
        if functions is None:
            return super().quantize(weight, into)
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        if into.in_tiles:
            for part, room in in_parts(weight, into, _QUANTIZED_TOGETHER):
                rows = empty_quantized(room.shape, into.bits, "cpu")
                self.quantize(part, rows)
                room.fill(rows)
            return
        functions.quantize(
            weight.data_ptr(),
            weight.stride(0),
            *weight.shape,
            into.bits,
            into.values.data_ptr(),
            into.scales.data_ptr(),
        )

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """See `Kernels.paged_attention`."""
        functions = self._functions.get(query.dtype)
        if functions is None:
            return super().paged_attention(query, key_cache, value_cache, batch, scale, window, softcap)
        places = batch.derived.get("cpu")
        if places is None:
            places = batch.derived["cpu"] = (
                batch.query_starts.data_ptr(),
                batch.context_lengths.data_ptr(),
                batch.block_tables.data_ptr(),
                batch.block_tables.stride(0),
                batch.positions.data_ptr(),
                None if batch.ancestors is None else batch.ancestors.data_ptr(),
                batch.context_lengths.shape[0],
            )
        tokens, heads, head_dim = query.shape
        output = self._rows_apart(query.dtype, tokens, heads * head_dim)
        functions.attention(
            query.data_ptr(),
            query.stride(0),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            output.data_ptr(),
            output.stride(0),
            *places,
            heads,
            key_cache.shape[1],
            head_dim,
            key_cache.shape[2],
            window or 0,
            scale,
            softcap or 0.0,
        )
        return output.view(tokens, heads, head_dim)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().rms_norm(x, weight, eps)
        return self._norm(functions.rms_norm, x, weight, None, eps)

    def wide_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.wide_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().wide_rms_norm(x, weight, eps)
        return self._norm(functions.wide_rms_norm, x, weight, None, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """See `Kernels.layer_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().layer_norm(x, weight, bias, eps)
        return self._norm(functions.layer_norm, x, weight, bias, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().add_rms_norm(x, residual, weight, eps)
        return self._add_norm(functions.add_rms_norm, x, residual, weight, None, eps)

    def add_wide_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_wide_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().add_wide_rms_norm(x, residual, weight, eps)
        return self._add_norm(functions.add_wide_rms_norm, x, residual, weight, None, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_layer_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return super().add_layer_norm(x, residual, weight, bias, eps)
        return self._add_norm(functions.add_layer_norm, x, residual, weight, bias, eps)

    def rope_and_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """See `Kernels.rope_and_write_kv`."""
        functions = self._functions.get(key.dtype)
        if functions is None:
            return super().rope_and_write_kv(
                query, key, value, cos_sin_cache, positions, key_cache, value_cache, slots, norms
            )
        tokens, heads, head_dim = query.shape
        table, rotary_dim = None, 0
        if cos_sin_cache is not None:
            table, rotary_dim = cos_sin_cache.data_ptr(), cos_sin_cache.shape[1]
        functions.rope_and_write_kv(
            query.data_ptr(),
            query.stride(0),
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            table,
            positions.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slots.data_ptr(),
            tokens,
            heads,
            key_cache.shape[1],
            head_dim,
            rotary_dim,
            key_cache.shape[2],
            *(_NO_NORMS if norms is None else _norm_arguments(norms)),
        )

    def write_kv(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> None:
        """See `Kernels.write_kv`."""
        self.rope_and_write_kv(key[:, :0], key, value, None, slots, key_cache, value_cache, slots)

    def move_kv(self, caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
        """See `Kernels.move_kv`."""
        by_block: dict[int, list[int]] = {}  # tensors, by the bytes of a block
        for tensor in chain.from_iterable(caches):
            by_block.setdefault(tensor.stride(0) * tensor.itemsize, []).append(tensor.data_ptr())
        for block_bytes, pointers in by_block.items():
            tensors = (ctypes.c_void_p * len(pointers))(*pointers)
            self._library.move_blocks(
                ctypes.addressof(tensors),
                len(pointers),
                block_bytes,
                sources.data_ptr(),
                destinations.data_ptr(),
                len(sources),
            )

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See `Kernels.silu_and_mul`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return super().silu_and_mul(gate_up)
        return self._act_and_mul(functions.silu_and_mul, gate_up)

    def gelu_and_mul(self, gate_up: Tensor, tanh: bool) -> Tensor:
        """See `Kernels.gelu_and_mul`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return super().gelu_and_mul(gate_up, tanh)
        return self._act_and_mul(functions.gelu_tanh_and_mul if tanh else functions.gelu_and_mul, gate_up)

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        """See `Kernels.gelu`."""
        functions = self._functions.get(x.dtype)
        if functions is None or x.dim() != 2:
            return super().gelu(x, tanh)
        rows, width = x.shape
        y = self._rows_apart(x.dtype, rows, width)
        act = functions.gelu_tanh if tanh else functions.gelu
        act(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), rows, width)
        return y

    def route(self, logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """See `Kernels.route`."""
        functions = self._functions.get(logits.dtype)
        if functions is None:
            return super().route(logits, top_k, normalise)
        tokens, num_experts = logits.shape
        weights = torch.empty(tokens, top_k, dtype=torch.float32)
        experts = torch.empty(tokens, top_k, dtype=torch.int64)
        functions.route(
            logits.data_ptr(),
            logits.stride(0),
            tokens,
            num_experts,
            top_k,
            normalise,
            weights.data_ptr(),
            experts.data_ptr(),
        )
        return weights, experts

    def moe(
        self, x: Tensor, gate_up: Weight, down: Weight, weights: Tensor, experts: Tensor, activation: str
    ) -> Tensor:
        """See `Kernels.moe`."""
        functions = self._functions.get(x.dtype)
        ours = expert_weights(gate_up, down)
        if functions is None or ours is None:
            return super().moe(x, gate_up, down, weights, experts, activation)
        if isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight):
            alike = gate_up.in_tiles == down.in_tiles
            if not alike or (gate_up.in_tiles and x.dtype not in self.quantized_tiles):
                return self.moe(x, gate_up.in_rows(), down.in_rows(), weights, experts, activation)
        tokens, hidden = x.shape
        y = self._empty(x.dtype, tokens, hidden)
        functions.moe(
            x.data_ptr(),
            x.stride(0),
            *ours,
            self.rows_alike,
            weights.data_ptr(),
            experts.data_ptr(),
            y.data_ptr(),
            tokens,
            experts.shape[1],
            gate_up.shape[0],
            hidden,
            down.shape[2],
            _ACTIVATIONS[activation],
        )
        return y

    def sample(self, logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
        """See `Kernels.sample`."""
        rows, vocab_size = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self._library.sample(
            logits.data_ptr(),
            logits.stride(0),
            rows,
            vocab_size,
            params.temperature.data_ptr(),
            params.top_k.data_ptr(),
            params.top_p.data_ptr(),
            params.min_p.data_ptr(),
            params.seed.data_ptr(),
            params.sample.data_ptr(),
            params.position.data_ptr(),
            *((0, 0, 0, 0) if masks is None else _mask_arguments(masks)),
            tokens.data_ptr(),
        )
        return tokens

    def mask_logits(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """See `Kernels.mask_logits`."""
        self._library.mask_logits(
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            rows.data_ptr(),
            len(rows),
            bits.data_ptr(),
            bits.shape[1],
        )

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
        """See `Kernels.top_logprobs`."""
        rows, vocab_size = logits.shape
        found = TokenLogprobs(
            chosen=torch.empty(rows),
            ranks=torch.empty(rows, dtype=torch.int32),
            top_tokens=torch.empty(rows, k, dtype=torch.int32),
            top=torch.empty(rows, k),
        )
        self._library.top_logprobs(
            logits.data_ptr(),
            logits.stride(0),
            rows,
            vocab_size,
            tokens.data_ptr(),
            k,
            *(part.data_ptr() for part in found),
        )
        return found

    def _norm(
        self, kernel: Callable[..., None], x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        if x.dim() != 2:
            y = self._empty(x.dtype, x.numel() // x.shape[-1], x.shape[-1])
            return self._norm_into(y, kernel, x.reshape(y.shape), weight, bias, eps).view(x.shape)
        return self._norm_into(self._rows_apart(x.dtype, *x.shape), kernel, x, weight, bias, eps)

    @staticmethod
    def _norm_into(
        y: Tensor,
        kernel: Callable[..., None],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        rows, size = x.shape
        kernel(
            x.data_ptr(),
            x.stride(0),
            y.data_ptr(),
            y.stride(0),
            rows,
            size,
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            eps,
        )
        return y

    def _add_norm(
        self,
        kernel: Callable[..., None],
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        rows, size = x.shape
        y, total = self._rows_apart(x.dtype, rows, size), self._empty(x.dtype, rows, size)
        kernel(
            x.data_ptr(),
            x.stride(0),
            residual.data_ptr(),
            residual.stride(0),
            y.data_ptr(),
            y.stride(0),
            total.data_ptr(),
            rows,
            size,
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            eps,
        )
        return y, total

    def _act_and_mul(self, kernel: Callable[..., None], gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        y = self._rows_apart(gate_up.dtype, rows, width // 2)
        kernel(gate_up.data_ptr(), gate_up.stride(0), y.data_ptr(), y.stride(0), rows, width // 2)
        return y


def _functions(library: Library) -> dict[torch.dtype, Functions]:
    return {torch.float32: library.f32, torch.bfloat16: library.bf16, torch.float16: library.f16}


def _mask_arguments(masks: TokenMasks) -> tuple[int, int, int, int]:
    rows, bits = masks
    return rows.data_ptr(), len(rows), bits.data_ptr(), bits.shape[1]


def _norm_arguments(norms: HeadNorms) -> tuple[int, int, bool, float]:
    return norms.query.data_ptr(), norms.key.data_ptr(), norms.wide, norms.eps
