"""Prompts as embeddings, which stand in for those of tokens.

frontend ──Submit──▶ scheduler ──Admission──▶ blocks, ──NewSequence──▶ executor/*

Each row has a token id, `PLACEHOLDER_TOKEN`, for the sake of those who count tokens; it says nothing.
What a row is called goes by its content, so that prompts share cached prefixes where their rows are equal, and only
there.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pageant.protocol.arrays import Float32Matrix, UInt8Vector

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NAME_BYTES", "PLACEHOLDER_TOKEN", "EmbeddedRows", "PromptEmbeds", "row_names"]

PLACEHOLDER_TOKEN = 0
NAME_BYTES = 16


class PromptEmbeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a prompt.

    Attributes:
        rows: float32 [N, hidden_size], finite, one for each token of the prompt.
        names: [N * NAME_BYTES], what each row is called; see `row_names`.
    """

    rows: Float32Matrix
    names: UInt8Vector


class EmbeddedRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of a prompt that are to be computed.

    Attributes:
        start: the position of the first.
        rows: float32 [n, hidden_size], up to the prompt's end; none where all of it is cached.
    """

    start: int
    rows: Float32Matrix


def row_names(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return what rows [N, hidden_size] are called, [N * NAME_BYTES]: digests of their values as little-endian floats.

    128 bits of a cryptographic hash are taken as equality.
    """
    data = np.ascontiguousarray(rows, dtype="<f4")
    digests = b"".join(blake2b(row.data, digest_size=NAME_BYTES).digest() for row in data)
    return np.frombuffer(digests, np.uint8).copy()
