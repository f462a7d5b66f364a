"""Medusa: heads on the last hidden state guess several places ahead, each without knowing what the others guess.

Their likeliest tokens make a tree: a path's likelihood is the product of its tokens', and the tree has the likeliest
paths (as EAGLE-2 grows its own; Li et al., 2024), as many drafts as are wanted. It is found anew in each step.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.proposers.base import BatchSizes, Verified, hidden_size_of, sampled
from pageant.kernels.base import KVCache
from pageant.models.decoder import Decoder
from pageant.models.heads.medusa import MedusaHeads
from pageant.protocol.arrays import int32
from pageant.protocol.verification import Drafts

__all__ = ["Medusa", "likeliest_tree"]

BREADTH_MAX = 10  # candidates for one place

Levels = Sequence[tuple[Sequence[int], Sequence[float]]]


class Medusa:
    """A `Proposer`; see `base`."""

    taps: tuple[int, ...] = ()

    def __init__(self, path: Path, target: Decoder) -> None:
        self._heads = MedusaHeads(path, target, hidden_size_of(target))
        self._kernels = target.kernels

    windows: tuple[int | None, ...] = ()

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Proposer`. Heads have no memory."""
        return 0

    def allocate(self, sizes: BatchSizes) -> Sequence[KVCache]:
        """See `Proposer`."""
        return []

    def propose(self, step: Verified) -> Drafts:
        """See `Proposer`."""
        counts = step.wanted.copy()
        which = np.flatnonzero(counts)
        if not len(which):
            return Drafts(counts, int32(), int32())
        levels = self._levels(step, which)
        trees = [
            likeliest_tree(
                [(tokens[row].tolist(), chances[row].tolist()) for tokens, chances in levels], count
            )
            for row, count in enumerate(counts[which].tolist())
        ]
        counts[which] = [len(tree.token_ids) for tree in trees]
        token_ids = int32([token for tree in trees for token in tree.token_ids])
        parents = int32([parent for tree in trees for parent in tree.parents])
        is_chain = all(parent == index - 1 for tree in trees for index, parent in enumerate(tree.parents))
        return Drafts(counts, token_ids, int32() if is_chain else parents)

    def _levels(
        self, step: Verified, which: npt.NDArray[np.int64]
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Return candidates and their likelihoods by head, [R, candidates]: first what the target would draw from the
        head's logits, then the others, the likeliest first."""
        hidden = step.hidden[to_device(step.last_hidden[which], step.hidden.device)]
        deepest = int(step.wanted.max())
        levels = []
        for head in range(min(self._heads.num_heads, deepest)):
            logits = self._heads.logits(head, hidden)
            chances, tokens = torch.softmax(logits, dim=-1).topk(min(BREADTH_MAX, deepest, logits.shape[1]))
            drawn = sampled(self._kernels, logits, step, which, head + 1)[:, None]
            others = tokens.masked_fill(tokens == drawn, -1)
            levels.append(
                (
                    torch.cat([drawn, others], dim=1).cpu().numpy(),
                    torch.cat([chances[:, :1], chances], dim=1).float().cpu().numpy(),
                )
            )
        return levels


class Tree(NamedTuple):
    """Drafts and the parent of each, which comes before it; -1 is none."""

    token_ids: list[int]
    parents: list[int]


def likeliest_tree(levels: Levels, size: int) -> Tree:
    """Return the `size` likeliest nodes of the tree whose nodes at depth d are the candidates `levels[d]`.

    Args:
        levels: tokens, and the likelihood of each, which no later one of the same level exceeds. A negative token is
            none.
    """
    tree = Tree([], [])
    # Of each node, its likelihood, depth, rank among its siblings, and parent with that one's likelihood.
    waiting = [(-levels[0][1][0], 0, 0, -1, 1.0)] if levels else []
    while waiting and len(tree.token_ids) < size:
        chance, depth, rank, parent, above = heapq.heappop(waiting)
        tokens, chances = levels[depth]
        if rank + 1 < len(tokens):
            heapq.heappush(waiting, (-above * chances[rank + 1], depth, rank + 1, parent, above))
        if tokens[rank] < 0:
            continue
        tree.token_ids.append(tokens[rank])
        tree.parents.append(parent)
        if depth + 1 < len(levels):
            below = -chance * levels[depth + 1][1][0]
            heapq.heappush(waiting, (-below, depth + 1, 0, len(tree.token_ids) - 1, -chance))
    return tree
