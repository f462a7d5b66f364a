"""Prompts as embeddings, as users bring them: arrays and tensors, or safetensors over HTTP. Pickles are never read."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.protocol.errors import BadRequest

__all__ = ["MAGNITUDE_MAX", "EmbeddedPrompt", "check_taken", "decode_embeds", "read_embeds"]

MAGNITUDE_MAX = 10_000.0
"""Of a value: with it, layers stay finite in float16 too, and no KV block ever holds what is no number."""
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_EXPECTED = "expected float32, float16 or bfloat16"
_PICKLES = (
    b"PK\x03\x04",
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"\x80\x05",
)  # as torch.save and pickle write them

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class EmbeddedPrompt:
    """A checked prompt: float32 rows [N, hidden_size], finite, and read-only."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)


def check_taken(size: int | None, name: str = "prompt_embeds") -> int:
    """Return the size of embeddings that a model takes.

    Raises:
        BadRequest: it takes none.
    """
    if size is None:
        raise BadRequest(
            f"{name} is given; expected none: the model is not served with enable_prompt_embeds", name
        )
    return size


def read_embeds(value: Any, size: int | None, name: str = "prompt_embeds") -> EmbeddedPrompt:
    """Return a copy of embeddings [N, size], or [1, N, size], of a tensor or an array.

    Args:
        size: the model's hidden size; None is a model that takes none.
        name: what the client calls them.

    Raises:
        BadRequest: none are taken, or another type, shape, dtype, or value than the model can compute with.
    """
    size = check_taken(size, name)
    rows = _array(value, name)
    if rows.ndim == 3 and len(rows) == 1:
        rows = rows[0]
    if rows.ndim != 2 or rows.shape[1] != size or not len(rows):
        raise BadRequest(
            f"{name} has the shape {list(rows.shape)}; expected [tokens, {size}], which is the model's hidden size",
            name,
        )
    wrong = ~(np.abs(rows) <= MAGNITUDE_MAX)  # what is no number is not less either
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        found = float(rows[row, column])
        raise BadRequest(
            f"{name}[{row}][{column}] is {found:g}; expected a number between {-MAGNITUDE_MAX:g} and {MAGNITUDE_MAX:g}",
            name,
        )
    return EmbeddedPrompt(rows)


def _array(value: Any, name: str) -> Rows:
    """Return the values of a tensor or an array as float32, in memory of their own that nobody writes to."""
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if hasattr(value, "detach"):  # torch's, which need not be loaded here
        value = value.detach().cpu()
        value = value.float().numpy() if dtype in _DTYPES.values() else value
    elif not isinstance(value, np.ndarray):
        raise BadRequest(f"{name} is a {type(value).__name__}; expected a tensor or an array of floats", name)
    if dtype not in _DTYPES.values():
        raise BadRequest(f"{name} is of {dtype}; {_EXPECTED}", name)
    rows: Rows = np.array(value, dtype=np.float32, order="C")
    rows.flags.writeable = False  # so that a part of them can be sent as it is
    return rows


def decode_embeds(text: str, name: str = "prompt_embeds") -> Rows:
    """Return the one tensor of a safetensors file, written in base64, as float32 of its shape.

    Raises:
        BadRequest: no base64, no safetensors file (a pickle, say), several tensors, or another dtype.
    """
    from safetensors import SafetensorError, deserialize

    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{name} is no base64 ({error}); expected a safetensors file in it", name) from None
    if data.startswith(_PICKLES):
        raise BadRequest(
            f"{name} is a pickle, as torch.save writes it, which is never read; expected a safetensors file, as "
            "safetensors.torch.save writes it",
            name,
        )
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise BadRequest(f"{name} is no safetensors file: {error!s:.200}", name) from None
    if len(tensors) != 1:
        raise BadRequest(f"{name} has {len(tensors)} tensors; expected one", name)
    _, tensor = tensors[0]
    kind, shape = tensor["dtype"], tensor["shape"]
    if kind not in _DTYPES:
        raise BadRequest(f"{name} is of {kind}; {_EXPECTED}", name)
    if kind == "BF16":
        widened = np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << 16
        return widened.view(np.float32).reshape(shape)
    return np.frombuffer(tensor["data"], "<f4" if kind == "F32" else "<f2").astype(np.float32).reshape(shape)
