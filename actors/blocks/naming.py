"""New sequences, with the names of their full blocks."""

from __future__ import annotations

import numpy as np

from pageant.actors.blocks.columns import Columns
from pageant.actors.blocks.embeddings import EmbeddingNumbers
from pageant.actors.blocks.sequence import Sequence
from pageant.protocol.allocation import Admission
from pageant.protocol.block_names import block_names, full_blocks, root_name


def open_sequence(
    admission: Admission, columns: Columns, block_size: int, embeddings: EmbeddingNumbers | None
) -> Sequence:
    """Return a new sequence that holds no block yet, and give it a slot of `columns`.

    Args:
        block_size: tokens of a block.
        embeddings: numbers those that a prompt brings; None if no prefix is cached, and blocks need no names.
    """
    contents: list[bytes] = []
    token_ids, tail, generation = admission.token_ids, b"", None
    if embeddings is not None:
        if admission.embed_names is not None:
            token_ids = embeddings.put(token_ids, admission)
            generation = embeddings.generation
        contents, tail = full_blocks(token_ids, block_size)
    root = root_name(admission.salt, admission.extra_keys, admission.adapter, generation or None)
    slot = columns.open(admission.serial, np.frombuffer(tail, "<i4"))
    sequence = Sequence(columns, slot, root, [], block_names(root, contents), contents)
    sequence.is_local = generation is not None
    return sequence
