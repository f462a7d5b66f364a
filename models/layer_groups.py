"""Layers that share blocks of the KV cache, so that those with a window can give theirs back.

Only layers that attend are counted here. States of recurrent layers lie in blocks of further groups: the block of a
position holds the states after the last token up to there that was computed. So they come from the same pool, and a
block that is full keeps the states at its end.

A block holds the keys and values of `block_size` tokens in all layers of one group. All groups have as many layers, so
that all blocks are as large and come from one pool: that of the kind of layers of which there are fewest (after vLLM's
hybrid KV cache manager). A group that lacks layers leaves its blocks partly empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pageant.kernels.base import AttentionBatch, KVCache

__all__ = ["STATE_WINDOW", "LayerGroups"]

STATE_WINDOW = 2
"""The window of groups with states, in tokens: a token needs the states after the one before it."""

_GROUPS_MAX = 12  # each costs a block, and its bookkeeping, for every `block_size` tokens of a sequence


@dataclass(frozen=True)
class LayerGroups:
    """Groups of layers: which layer is of which group, and where in its blocks."""

    windows: tuple[int | None, ...]
    """Of each group's layers; None is over all tokens. The first group reaches furthest."""
    of_layer: tuple[int, ...]
    """Each layer's group."""
    places: tuple[int, ...]
    """Each layer's place among those of its group."""
    num_states: int = 0
    """How many of the groups, the last ones, hold states of recurrent layers."""

    @property
    def layers_per_block(self) -> int:
        """Return how many layers the largest group has."""
        return max(self.places) + 1

    def with_states(self, count: int) -> LayerGroups:
        """Return these groups, and behind them so many that hold states."""
        return replace(self, windows=(*self.windows, *(STATE_WINDOW,) * count), num_states=count)

    def in_order(
        self, batches: Sequence[AttentionBatch], caches: Sequence[KVCache]
    ) -> Iterator[tuple[AttentionBatch, KVCache]]:
        """Return for each layer its group's step and its own cache."""
        assert len(batches) == len(self.windows), f"{len(batches)} batches for {len(self.windows)} groups"
        return (
            (batches[group], caches[place]) for group, place in zip(self.of_layer, self.places, strict=True)
        )

    def part(self, layers: range) -> LayerGroups:
        """Return the same groups for some of the layers alone, whose caches are numbered anew.

        A group may have no layer among them. Its blocks are then no memory here.
        """
        seen = Counter[int]()
        groups, places = [], []
        for group in self.of_layer[layers.start : layers.stop]:
            groups.append(group)
            places.append(seen[group])
            seen[group] += 1
        return LayerGroups(self.windows, tuple(groups), tuple(places))

    @classmethod
    def one(
        cls,
        windows: Sequence[int | None],
        max_model_len: int | None = None,
        beside: Sequence[int | None] = (),
    ) -> LayerGroups:
        """All layers in one group: tokens are kept as long as any of them reaches back, or any of others whose keys and
        values are in the same blocks, which have the windows `beside`."""
        longest = max(_effective([*windows, *beside], max_model_len), key=_reach)
        return cls((longest,), (0,) * len(windows), tuple(range(len(windows))))

    @classmethod
    def scratch(cls, windows: Sequence[int | None]) -> LayerGroups:
        """Return one group whose layers write to the same memory in turn: nothing is kept from step to step."""
        return cls((None,), (0,) * len(windows), (0,) * len(windows))

    @classmethod
    def by_window(cls, windows: Sequence[int | None], max_model_len: int) -> LayerGroups:
        """Layers with the same window are together; one that no request outgrows is none."""
        effective = _effective(windows, max_model_len)
        counts = Counter(effective)
        if len(counts) == 1 or len(counts) > _GROUPS_MAX:
            return cls.one(effective)
        kinds = sorted(counts, key=_reach, reverse=True)
        size = min(counts.values())
        while sum(-(-count // size) for count in counts.values()) > _GROUPS_MAX:
            size += 1
        first: dict[int | None, int] = {}
        found: list[int | None] = []
        seen = Counter[int | None]()
        for window in kinds:
            first[window] = len(found)
            found += [window] * -(-counts[window] // size)
        groups, places = [], []
        for window in effective:
            groups.append(first[window] + seen[window] // size)
            places.append(seen[window] % size)
            seen[window] += 1
        return cls(tuple(found), tuple(groups), tuple(places))


def _effective(windows: Sequence[int | None], max_model_len: int | None) -> list[int | None]:
    """The same, without those that no request outgrows."""
    longest = math.inf if max_model_len is None else max_model_len
    return [None if window is None or window >= longest else window for window in windows]


def _reach(window: int | None) -> float:
    return math.inf if window is None else window
