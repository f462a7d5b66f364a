"""Norms, activations, and columns in another order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["LayerKernels"]


class LayerKernels(CompiledKernels):
    """The `Kernels` that work on each row of activations by itself."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("rms_norm").rms_norm(x, weight, eps)
        return self._norm(functions.rms_norm, x, weight, None, eps)

    def wide_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.wide_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("wide_rms_norm").wide_rms_norm(x, weight, eps)
        return self._norm(functions.wide_rms_norm, x, weight, None, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """See `Kernels.layer_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("layer_norm").layer_norm(x, weight, bias, eps)
        return self._norm(functions.layer_norm, x, weight, bias, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("add_rms_norm").add_rms_norm(x, residual, weight, eps)
        return self._add_norm(functions.add_rms_norm, x, residual, weight, None, eps)

    def add_wide_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_wide_rms_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("add_wide_rms_norm").add_wide_rms_norm(x, residual, weight, eps)
        return self._add_norm(functions.add_wide_rms_norm, x, residual, weight, None, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.add_layer_norm`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("add_layer_norm").add_layer_norm(x, residual, weight, bias, eps)
        return self._add_norm(functions.add_layer_norm, x, residual, weight, bias, eps)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See `Kernels.silu_and_mul`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return self._fall_back("silu_and_mul").silu_and_mul(gate_up)
        return self._act_and_mul(functions.silu_and_mul, gate_up)

    def gelu_and_mul(self, gate_up: Tensor, tanh: bool) -> Tensor:
        """See `Kernels.gelu_and_mul`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return self._fall_back("gelu_and_mul").gelu_and_mul(gate_up, tanh)
        return self._act_and_mul(functions.gelu_tanh_and_mul if tanh else functions.gelu_and_mul, gate_up)

    def clamped_swiglu(self, gate_up: Tensor) -> Tensor:
        """See `Kernels.clamped_swiglu`."""
        functions = self._functions.get(gate_up.dtype)
        if functions is None:
            return self._fall_back("clamped_swiglu").clamped_swiglu(gate_up)
        return self._act_and_mul(functions.clamped_swiglu, gate_up)

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        """See `Kernels.gelu`."""
        functions = self._functions.get(x.dtype)
        if functions is None or x.dim() != 2:
            return self._fall_back("gelu").gelu(x, tanh)
        rows, width = x.shape
        y = self._empty_padded(x.dtype, rows, width)
        act = functions.gelu_tanh if tanh else functions.gelu
        act(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), rows, width)
        return y

    def act_and_mul(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `Kernels.act_and_mul`."""
        if activation == "silu":
            return self.silu_and_mul(gate_up)
        if activation == "clamped_swiglu":
            return self.clamped_swiglu(gate_up)
        return self.gelu_and_mul(gate_up, tanh=activation == "gelu_tanh")

    def gather_columns(self, x: Tensor, order: Tensor) -> Tensor:
        """Return x [T, N] of any dtype with its columns in another order; see `Kernels.gather_columns`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("gather_columns").gather_columns(x, order)
        y = self._empty(x.dtype, *x.shape)
        functions.gather_columns(x.data_ptr(), x.stride(0), order.data_ptr(), *x.shape, y.data_ptr())
        return y

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
