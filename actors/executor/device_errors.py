"""Tells errors of a device, which outlive whoever met them, from all others.

After an illegal access or a failed assertion on the device, every call to CUDA from the process fails with the same
error, whatever it is about. So the process has to end. Knows no torch: an error is told by its class's name and by what
libraries write.
"""

from __future__ import annotations

__all__ = ["is_device_error"]

_CLASSES = ("AcceleratorError",)  # torch's, of each failed call to CUDA itself
_HARMLESS_CLASSES = ("OutOfMemoryError",)  # memory can be had back without the process ending
_TEXTS = (
    "CUDA error",  # torch, of CUDA and of cuBLAS
    "cuDNN error",
    "Triton Error [CUDA]",
    "CUDA driver error",
    "NCCL error",
)
_HARMLESS_TEXTS = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory")


def is_device_error(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, is of the device."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if _is_of_device(found):
            return True
        seen.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False


def _is_of_device(error: BaseException) -> bool:
    names, text = [cls.__name__ for cls in type(error).__mro__], str(error)
    if any(name in names for name in _HARMLESS_CLASSES) or any(part in text for part in _HARMLESS_TEXTS):
        return False
    return any(name in names for name in _CLASSES) or any(part in text for part in _TEXTS)
