"""Names of full blocks: a chained 128-bit blake2b over tokens, so that equal names mean equal prefixes.

The name of a block covers its parent's, hence every token before it, and salt and adapter at the root; the index
from names to blocks is thereby a prefix tree. 128 bits of a cryptographic hash are taken as equality.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

NAME_BYTES = 16


def root_name(
    salt: str | None = None,
    extra_keys: tuple[str, ...] = (),
    adapter: str | None = None,
    embeddings: int | None = None,
) -> bytes:
    """The parent of every first block. Prefixes under different salts, extra keys or adapters are never shared, nor
    those of embeddings of different generations (see `EmbeddingNumbers`).

    Salts and keys are texts that clients choose; each kind is hashed as itself, so that none can stand for another.
    """
    root = blake2b((salt or "").encode(), digest_size=NAME_BYTES, person=b"pageant-root").digest()
    if adapter is not None:
        root = blake2b(adapter.encode(), digest_size=NAME_BYTES, key=root, person=b"pageant-adapter").digest()
    for key in extra_keys:
        root = blake2b(key.encode(), digest_size=NAME_BYTES, key=root, person=b"pageant-extra").digest()
    if embeddings is not None:
        root = blake2b(
            b"%d" % embeddings, digest_size=NAME_BYTES, key=root, person=b"pageant-embeds"
        ).digest()
    return root


def block_name(parent: bytes, tokens: bytes) -> bytes:
    """The name of a block that holds `tokens`, ids as little-endian int32. A partly filled one has a name of
    its own, which no block follows. The parent is not the
    hash's key: that would be padded to a round of its own."""
    return blake2b(parent + tokens, digest_size=NAME_BYTES).digest()


def name_in_group(name: bytes, group: int) -> bytes:
    """The name of the block of a group of layers in a stretch of that name: in the first, the same."""
    return name if not group else name + bytes([group])


def is_of_first_group(name: bytes) -> bool:
    """Whether a block of that name is one of the first group."""
    return len(name) == NAME_BYTES


def full_blocks(token_ids: npt.NDArray[np.int32], block_size: int) -> tuple[list[bytes], bytes]:
    """The tokens of each full block of a sequence, and those after the last."""
    data = np.ascontiguousarray(token_ids, dtype="<i4").tobytes()
    step = 4 * block_size
    end = len(data) - len(data) % step
    return [data[start : start + step] for start in range(0, end, step)], data[end:]


def block_names(parent: bytes, blocks: Iterable[bytes]) -> list[bytes]:
    """The names of the blocks of a sequence, whose first follows `parent`."""
    names = []
    for tokens in blocks:  # as `block_name` does, whose call would be a tenth of this
        parent = blake2b(parent + tokens, digest_size=NAME_BYTES).digest()
        names.append(parent)
    return names
