"""Trees of drafts: where their tokens stand in the text, and which of the step's tokens each attends to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.verification import Drafts, within

__all__ = ["grow_trees", "kept_slots"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def grow_trees(places: Int64, first: Int64, drafts: Drafts) -> tuple[Int64, Int64]:
    """Return the T tokens' positions, and their masks of ancestors (see `kernels.base.AttentionBatch`).

    Args:
        places: [T], of each token in its sequence's memory.
        first: [N], of the T tokens: the last known one of each row that draws, which its drafts follow.
    """
    positions, masks = places.copy(), np.zeros(len(places), np.int64)
    parents, depths, start = drafts.parents.tolist(), drafts.depths, 0
    for root, count in zip(first.tolist(), drafts.counts.tolist(), strict=True):
        if not count:
            continue
        some = slice(start, start + count)
        positions[root + 1 : root + 1 + count] = places[root] + 1 + depths[some]
        mine = [1]
        for index, parent in enumerate(parents[some]):
            mine.append(mine[parent + 1] | 1 << (index + 1))
        masks[root : root + 1 + count] = mine
        start += count
    return positions, masks


def kept_slots(
    slots: Int64, last_tokens: Int64, drafts: Int32, accepted: Int32, places: Int32
) -> tuple[Int64, Int64]:
    """Return where the keys and values of accepted drafts are, and where they belong: one after another behind their
    row's last known token.

    Args:
        slots: [G, T], of the step's tokens in each group of layers.
        last_tokens: [D], of the T tokens, those of all places.
        drafts: [N], how many each row has.
        accepted: [N]
        places: that stand, `accepted[i] + 1` for each row.
    """
    counts = accepted + 1
    belongs = np.repeat(np.cumsum(drafts + 1) - drafts - 1, counts) + within(counts)
    moved = belongs != places
    sources, destinations = last_tokens[places[moved]], last_tokens[belongs[moved]]
    return slots[:, sources].reshape(-1), slots[:, destinations].reshape(-1)
