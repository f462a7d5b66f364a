"""Prompts as embeddings, or with some (those of images), which stand in for those of tokens.

frontend ──Submit──▶ scheduler ──Admission──▶ blocks, ──NewSequence──▶ executor/*

Each row has a token id, `PLACEHOLDER_TOKEN` or the model's own for images, for the sake of those who count tokens; it
says nothing.
What a row is called goes by its content, so that prompts share cached prefixes where their rows are equal, and only
there.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pageant.protocol.arrays import Float32Matrix, Int32Matrix, Int32Vector, UInt8Vector

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "NAME_BYTES",
    "PLACEHOLDER_TOKEN",
    "EmbeddedRows",
    "PromptEmbeds",
    "longest_run",
    "row_names",
    "uncut",
]

PLACEHOLDER_TOKEN = 0
NAME_BYTES = 16


class PromptEmbeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Embeddings of a whole prompt or of its images, or an encoder's rows of the sound that all its tokens attend to.

    Attributes:
        rows: float32 [n, width], finite. The width is the hidden size, or as many times that as there are inputs of
            layers that a row is added to (deepstack).
        names: [n * NAME_BYTES], what each row is called; see `row_names`.
        places: int32 [n], ascending: the positions of the rows in the prompt. None is all of it, in order.
        rotary: int32 [3, N]: positions by time, height and width that the prompt's tokens are rotated by (M-RoPE).
            None is each token's own.
        whole: rows of places next to each other are computed in one step: they attend to each other both ways.
        attended: rows stand in for no token: every token attends to all of them. `names` has a digest of them all, for
            the first token alone, since blocks are named by all tokens before them.
    """

    rows: Float32Matrix
    names: UInt8Vector
    places: Int32Vector | None = None
    rotary: Int32Matrix | None = None
    whole: bool = False
    attended: bool = False

    def uncached(self, num_cached: int) -> EmbeddedRows:
        """Return what is to be computed of a prompt of which so many tokens are cached."""
        if self.attended:
            return EmbeddedRows(start=num_cached, rows=self.rows, places=self.places, attended=True)
        if self.places is None:
            return EmbeddedRows(start=num_cached, rows=self.rows[num_cached:])
        first = int(np.searchsorted(self.places, num_cached))
        return EmbeddedRows(
            start=num_cached,
            rows=self.rows[first:],
            places=self.places[first:].copy(),
            rotary=self.rotary,
        )


class EmbeddedRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of a prompt that are to be computed.

    Attributes:
        start: the position of the first token to compute.
        rows: float32 [n, width], up to the prompt's end; none where all of them are cached.
        places: int32 [n], ascending: the position of each row. None is one after another from `start` on.
        rotary: see `PromptEmbeds`.
        attended: see `PromptEmbeds`; then all rows are there, whatever is cached.
    """

    start: int
    rows: Float32Matrix
    places: Int32Vector | None = None
    rotary: Int32Matrix | None = None
    attended: bool = False


def longest_run(places: npt.NDArray[np.int32]) -> int:
    """Return how many of places, int32 [n] and ascending, stand next to each other at most."""
    ends = np.flatnonzero(np.diff(places) != 1)
    return int(np.diff(np.concatenate([[-1], ends, [len(places) - 1]])).max(initial=0))


def uncut(places: npt.NDArray[np.int32], start: int, end: int) -> int:
    """Return where a chunk of tokens from `start` ends, at most at `end`, so that no run of places is cut in two.

    Args:
        places: int32 [n], ascending. A run are those that stand next to each other.
    """
    index = int(np.searchsorted(places, end))
    while 0 < index < len(places) and places[index] == places[index - 1] + 1 == end:
        index, end = index - 1, end - 1
    return max(start, end)


def row_names(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return what rows [N, hidden_size] are called, [N * NAME_BYTES]: digests of their values as little-endian floats.

    128 bits of a cryptographic hash are taken as equality.
    """
    data = np.ascontiguousarray(rows, dtype="<f4")
    digests = b"".join(blake2b(row.data, digest_size=NAME_BYTES).digest() for row in data)
    return np.frombuffer(digests, np.uint8).copy()
