"""Taking in a slot that was copied, header and all, from elsewhere: another host's memory, or a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pageant.actors.store.index import Place
from pageant.protocol.arena import (
    CHECKSUM_BYTES,
    HEADER,
    Arena,
    SlotState,
    aligned,
    rebase,
    sum_of_parts,
    sum_of_sums,
)
from pageant.protocol.storing import StoredLayout


@dataclass(frozen=True, slots=True)
class Copied:
    """A slot that was copied."""

    name: bytes
    generation: int
    """Its generation where it came from."""
    place: Place
    """The slot that it was copied to, and that slot's own generation."""


def adopt(arena: Arena, layout: StoredLayout, copied: Copied) -> bool:
    """Make a copied slot one of this arena's, in its own generation. Return whether it holds what its name says.

    The header is as it was copied: another name, generation or state there means that the slot had been given to
    another block, or that the copy ended early. Where the checksums do not fit, it was given away while it was copied.
    """
    slot, (name, before) = copied.place.slot, (copied.name, copied.generation)
    is_right = arena.holds(slot, name, before, SlotState.READY)
    arena.write_header(slot, name, copied.place.generation, SlotState.WRITING)
    if not is_right:
        return False
    first = (slot + HEADER.itemsize) // CHECKSUM_BYTES
    sums = arena.words[first : first + layout.num_parts]
    rebase(sums, before, copied.place.generation)
    return not layout.has_words or _fits(arena, layout, copied.place)


def _fits(arena: Arena, layout: StoredLayout, place: Place) -> bool:
    start = place.slot + HEADER.itemsize
    sums = arena.words[start // CHECKSUM_BYTES :][: layout.num_parts]
    first = place.slot + aligned(HEADER.itemsize + layout.num_parts * CHECKSUM_BYTES)
    words = arena.bytes[first : first + layout.parts_bytes].view(np.uint64)
    return sum_of_sums(sums) == sum_of_parts(words, layout.num_parts, place.generation)
