"""The CPU backend: C++ kernels for float32, bfloat16 and float16, compiled on first use.

Each method has the contract of `pageant.kernels.base.Kernels`. Cases that the C++ lacks (other dtypes, `rope`
without a cache) go to the reference. The step of a small model consists mostly of these wrappers, so that they
are as short as possible: no checks, hardly a view, and one allocation for a result. (`new_empty` with sizes one
by one takes half the time of `torch.empty` with a tuple.)

Row invariance: a row's bits depend neither on what else is in the step nor on how its prompt was chunked, where
all is computed here. That holds in bfloat16 with AVX2, and in float32 with AVX-512, where it costs nothing.
Below these levels, `linear` of many rows is torch's, which is faster there. With AMX, a quantised product of
many rows rounds x otherwise than one of few rows. `deterministic=True` does without either.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from pageant.kernels.base import (
    AttentionBatch,
    HeadNorms,
    KVCache,
    SamplingTensors,
    TokenLogprobs,
    TokenMasks,
)
from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.weights import WeightKernels

__all__ = ["BuildError", "CpuKernels"]

_NO_NORMS = (None, None, False, 0.0)
# The library's numbers of KV caches in 8 bits; others are in the model's dtype.
_KV_FORMATS = {torch.int8: 1, torch.float8_e4m3fn: 2}


class CpuKernels(WeightKernels):
    """The `Kernels` of a CPU; the docstrings there are the contract.

    Raises BuildError where the library can be neither found nor compiled.
    """

    name = "cpu"

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Kernels.paged_attention`."""
        functions = self._functions.get(query.dtype)
        if functions is None:
            return super().paged_attention(
                query, key_cache, value_cache, batch, scale, window, softcap, sinks
            )
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
        output = self._empty_padded(query.dtype, tokens, heads * head_dim)
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
            _KV_FORMATS.get(key_cache.dtype, 0),
            None if sinks is None else sinks.data_ptr(),
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
            _KV_FORMATS.get(key_cache.dtype, 0),
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

    def clamped_swiglu(self, gate_up: Tensor) -> Tensor:
        """See `Kernels.clamped_swiglu`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return super().clamped_swiglu(gate_up)
        return self._act_and_mul(functions.clamped_swiglu, gate_up)

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        """See `Kernels.gelu`."""
        functions = self._functions.get(x.dtype)
        if functions is None or x.dim() != 2:
            return super().gelu(x, tanh)
        rows, width = x.shape
        y = self._empty_padded(x.dtype, rows, width)
        act = functions.gelu_tanh if tanh else functions.gelu
        act(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), rows, width)
        return y

    def sample(self, logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
        """See `Kernels.sample`."""
        if masks is None:
            return self.sample_by_table(logits, params)
        slots = torch.full((len(logits),), -1)
        slots[masks.rows] = torch.arange(len(masks.rows))
        return self.sample_by_table(logits, params, slots, masks.bits)

    def sample_by_table(
        self,
        logits: Tensor,
        params: SamplingTensors,
        slots: Tensor | None = None,
        bits: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Sample as `sample` does, with masks in a table. Returns int64 [R].

        Args:
            logits: float32 [R, V].
            slots: int64 [R], the mask of each row in the table. A row that is UNMASKED has none, as all have
                without the argument. The token of a row that is VOID is 0.
            bits: int32 [S, V / 32 rounded up], see `TokenMasks`.
            places: int64 [R], the row of `logits` that each row samples from; None is its own.
        """
        rows, vocab_size = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self._library.sample(
            logits.data_ptr(),
            logits.stride(0),
            None if places is None else places.data_ptr(),
            rows,
            vocab_size,
            params.temperature.data_ptr(),
            params.top_k.data_ptr(),
            params.top_p.data_ptr(),
            params.min_p.data_ptr(),
            params.seed.data_ptr(),
            params.sample.data_ptr(),
            params.position.data_ptr(),
            *(
                (0, 0, 0)
                if slots is None or bits is None
                else (slots.data_ptr(), bits.data_ptr(), bits.shape[1])
            ),
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
        return self._norm_into(self._empty_padded(x.dtype, *x.shape), kernel, x, weight, bias, eps)

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
        y, total = self._empty_padded(x.dtype, rows, size), self._empty(x.dtype, rows, size)
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
        y = self._empty_padded(gate_up.dtype, rows, width // 2)
        kernel(gate_up.data_ptr(), gate_up.stride(0), y.data_ptr(), y.stride(0), rows, width // 2)
        return y


def _norm_arguments(norms: HeadNorms) -> tuple[int, int, bool, float]:
    return norms.query.data_ptr(), norms.key.data_ptr(), norms.wide, norms.eps
