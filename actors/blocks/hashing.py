"""Names of full blocks: a chained 128-bit blake2b over tokens, so that equal names mean equal prefixes.

The name of a block covers its parent's, hence every token before it, and the salt at the root; the index
from names to blocks is thereby a prefix tree. 128 bits of a cryptographic hash are taken as equality.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

NAME_BYTES = 16


def root_name(salt: str | None = None) -> bytes:
    """The parent of every first block. Prefixes under different salts are never shared."""
    return blake2b((salt or "").encode(), digest_size=NAME_BYTES, person=b"pageant-root").digest()


def block_name(parent: bytes, tokens: bytes) -> bytes:
    """The name of a full block: `tokens` are its ids as little-endian int32."""
    return blake2b(tokens, digest_size=NAME_BYTES, key=parent).digest()


def block_names(parent: bytes, token_ids: npt.NDArray[np.int32], block_size: int) -> list[bytes]:
    """The names of all full blocks of a sequence, whose first follows `parent`."""
    data = np.ascontiguousarray(token_ids, dtype="<i4").tobytes()
    step = 4 * block_size
    names = []
    for start in range(0, len(data) - step + 1, step):
        parent = block_name(parent, data[start : start + step])
        names.append(parent)
    return names
