"""Names of full blocks: a chained 128-bit blake2b over tokens, so that equal names mean equal prefixes.

The name of a block covers its parent's, hence every token before it, and salt and adapter at the root. The
index from names to blocks is therefore a prefix tree. Equal 128-bit cryptographic hashes are taken as equal
prefixes.
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
    """Return the parent of every first block. Prefixes of different salts, extra keys or adapters are never
    shared, nor those of embeddings of different generations (see `EmbeddingNumbers`).

    Salts and keys are texts that clients choose. Each kind is hashed under its own label, so that none can
    imitate another.
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
    """Return the name of a block that holds `tokens`, ids as little-endian int32.

    A partly filled block has a name of its own, which no block follows. The parent is not the hash's key: the
    key would be padded to a round of its own.
    """
    return blake2b(parent + tokens, digest_size=NAME_BYTES).digest()


def name_in_group(name: bytes, group: int) -> bytes:
    """Return the name of a layer group's block in a block group of that name. In the first layer group it is
    the same.
    """
    return name if not group else name + bytes([group])


def is_of_first_group(name: bytes) -> bool:
    """Tell whether a block of that name belongs to the first layer group."""
    return len(name) == NAME_BYTES


def full_blocks(token_ids: npt.NDArray[np.int32], block_size: int) -> tuple[list[bytes], bytes]:
    """Return the tokens of each full block of a sequence, and those after the last, as bytes. token_ids: int32
    [N].
    """
    data = np.ascontiguousarray(token_ids, dtype="<i4").tobytes()
    step = 4 * block_size
    end = len(data) - len(data) % step
    return [data[start : start + step] for start in range(0, end, step)], data[end:]


def block_names(parent: bytes, blocks: Iterable[bytes]) -> list[bytes]:
    """Return the names of the blocks of a sequence, the first of which follows `parent`."""
    names = []
    # The body of `block_name`: a call of it would take a tenth of the time.
    for tokens in blocks:
        parent = blake2b(parent + tokens, digest_size=NAME_BYTES).digest()
        names.append(parent)
    return names
