"""Errors of a device are told from others, whatever they were wrapped in."""

from __future__ import annotations

import pytest
import torch

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.batch.processors import Processing, process_logits
from pageant.actors.executor.device_errors import is_device_error


def wrapped(error: BaseException, *, suppressed: bool = False) -> BaseException:
    """An error that was raised while another was handled."""
    try:
        try:
            raise error
        except BaseException as cause:
            if suppressed:
                raise ValueError("a step failed") from None
            raise ValueError("a step failed") from cause
    except ValueError as outer:
        return outer


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        wrapped(RuntimeError("CUDA error: unspecified launch failure")),
    ],
)
def test_an_error_of_the_device_loses_the_process(error: BaseException) -> None:
    assert is_device_error(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        ValueError("cuda is no word"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        wrapped(RuntimeError("CUDA error: unspecified launch failure"), suppressed=True),
        MemoryError(),
    ],
)
def test_another_error_leaves_the_process_alone(error: BaseException) -> None:
    assert not is_device_error(error)


def test_an_error_that_caused_itself_is_looked_at_once() -> None:
    error = RuntimeError("odd")
    other = RuntimeError("even")
    error.__cause__, other.__cause__ = other, error
    assert not is_device_error(error)


class Asserts:
    def wants(self, params: object) -> bool:
        return True

    def apply(self, logits: torch.Tensor, rows: object) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def test_a_logits_processor_that_breaks_the_device_fails_no_request() -> None:
    row = object()
    with pytest.raises(torch.AcceleratorError):
        process_logits(torch.zeros(1, 4), Processing([(Asserts(), [0], [row])], {}))  # type: ignore[list-item]


def test_the_executor_asks_about_the_error() -> None:
    executor = Executor.__new__(Executor)
    assert executor.loses_process(torch.AcceleratorError("launch failed"))
    assert not executor.loses_process(ValueError("launch failed"))
