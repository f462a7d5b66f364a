"""Bytes of a GGUF file as tensors, memory-mapped one by one: what was read goes with the tensor that it is seen by."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from pageant.models.errors import CheckpointError
from pageant.models.gguf.types import row_bytes
from pageant.models.tensor_files import TensorInfo

__all__ = ["map_tensor"]

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def map_tensor(info: TensorInfo) -> Tensor:
    """Return a tensor of a file: in its own dtype [*info.shape], or blocks as uint8 [*info.shape[:-1], bytes of a row].

    Raises CheckpointError where the file is not what it was.
    """
    start = info.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    skipped = info.offset - start
    try:
        with info.file.open("rb") as file:
            # A private mapping is writable for torch, and no write reaches the file.
            mapped = mmap.mmap(file.fileno(), skipped + info.num_bytes, access=mmap.ACCESS_COPY, offset=start)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            info.file, f"not readable ({error})", "a GGUF file", "Download it again."
        ) from error
    content = torch.frombuffer(mapped, dtype=torch.uint8, count=info.num_bytes, offset=skipped)
    dtype = _DTYPES.get(info.dtype)
    if dtype is not None:
        return content.view(dtype).view(info.shape)
    return content.view(*info.shape[:-1], row_bytes(info.dtype, info.shape[-1]))
