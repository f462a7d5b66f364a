"""States of recurrent layers in blocks of the KV cache.

A layer's state is some bytes, which lie in pages: a page is what a block has of the keys, or of the values, of one
layer that attends. All layers' states together take whole blocks of one or more groups (`LayerGroups`). The blocks of
a sequence that hold position p hold the states after the last token up to the block's end that was computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pageant.kernels import memory
from pageant.kernels.base import AttentionBatch, KVCache
from pageant.kernels.states import Page, StateBatch, StateMemory
from pageant.models.kv_cache import KVLayout
from pageant.models.layer_groups import LayerGroups
from pageant.models.recurrent_spec import RecurrentSpec
from pageant.models.spec import DecoderSpec
from pageant.models.state_batch import make_state_batch
from pageant.protocol.errors import ConfigurationError

__all__ = ["Both", "LayerState", "RecurrentStates", "state_bytes"]

GROUPS_MAX = 16
"""The most groups of states: each costs a block, and its bookkeeping, for every `block_size` tokens."""
_ALIGNMENT = 8


def state_bytes(spec: RecurrentSpec, dtype: torch.dtype) -> int:
    """Return the bytes of one layer's state of one sequence."""
    size = 4 * spec.state.num_matrix_numbers + dtype.itemsize * spec.state.num_conv_numbers
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class KeptTokens:
    """Inputs kept by a layer to take in tokens that may be wrong, by row of the batch; see `StateRows`."""

    def __init__(self) -> None:
        self._columns: tuple[Tensor, ...] | None = None

    def save(self, rows: Tensor, places: Tensor, columns: tuple[Tensor, ...]) -> None:
        """Keep tokens for their rows, in the places of their order. rows, places: int64 [n]; columns: [n, ...] each."""
        num_rows, num_places = int(rows.max()) + 1, int(places.max()) + 1
        if self._columns is not None:
            num_rows = max(num_rows, self._columns[0].shape[0])
            num_places = max(num_places, self._columns[0].shape[1])
        if self._columns is None or (num_rows, num_places) != self._columns[0].shape[:2]:
            self._grow(num_rows, num_places, columns)
        assert self._columns is not None, "there is room by now"
        for kept, column in zip(self._columns, columns, strict=True):
            kept[rows, places] = column

    def _grow(self, num_rows: int, num_places: int, columns: tuple[Tensor, ...]) -> None:
        before = self._columns
        self._columns = tuple(column.new_empty(num_rows, num_places, *column.shape[1:]) for column in columns)
        if before is not None:
            for kept, old in zip(self._columns, before, strict=True):
                kept[: old.shape[0], : old.shape[1]] = old

    def find(self, rows: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of tokens that were kept, [n, ...] each, of their own dtypes. rows, places: int64 [n]."""
        assert self._columns is not None, "tokens are replayed that were kept"
        return tuple(kept[rows, places] for kept in self._columns)


@dataclass(frozen=True, eq=False)
class LayerState:
    """States of a recurrent layer, and tokens of drafts."""

    memory: StateMemory
    kept: KeptTokens = field(default_factory=KeptTokens)

    @classmethod
    def of(cls, spec: RecurrentSpec, dtype: torch.dtype, pages: tuple[Page, ...]) -> LayerState:
        """Return a layer's states in pages. dtype: of the model."""
        return cls(StateMemory(**spec.state._asdict(), dtype=dtype, pages=pages))

    @classmethod
    def alone(cls, spec: RecurrentSpec, num_blocks: int, dtype: torch.dtype) -> LayerState:
        """Return a layer's states in memory of their own, on the CPU."""
        page = torch.zeros(num_blocks, state_bytes(spec, dtype), dtype=torch.uint8)
        return cls.of(spec, dtype, (Page(0, page),))

    def with_kept(self, batch: StateBatch, *columns: Tensor) -> tuple[Tensor, ...]:
        """Return columns of a step's tokens, [T, ...] of any dtype, and behind them those of replayed ones.

        Keeps those of drafts.
        """
        found = columns
        if batch.replayed is not None:
            kept = self.kept.find(batch.replayed.rows, batch.replayed.places)
            found = tuple(torch.cat(pair) for pair in zip(columns, kept, strict=True))
        if batch.unsure is not None:
            chosen = tuple(column[batch.unsure_tokens] for column in columns)
            self.kept.save(batch.unsure.rows, batch.unsure.places, chosen)
        return found


class Both(NamedTuple):
    """Part of a step, or the memory, of a layer that attends and is recurrent."""

    attention: Any
    recurrent: Any


class RecurrentStates:
    """The states of a decoder's recurrent layers.

    Args:
        spec: of the decoder.
        dtype: of the decoder.
    """

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        self._layers = spec.layers
        self._recurrent = [layer.recurrent for layer in spec.layers if layer.recurrent is not None]
        self._dtype = dtype
        self._sizes = [state_bytes(layer, dtype) for layer in self._recurrent]
        self._states: tuple[Sequence[KVCache], list[LayerState]] | None = None

    @property
    def bytes_beside(self) -> int:
        """Return the bytes of the states of all layers, where a block has them beside its keys and values."""
        return sum(self._sizes)

    def groups_behind(self, groups: LayerGroups, layout: KVLayout, block_size: int) -> LayerGroups:
        """Return groups of layers with those behind them that hold the states of all recurrent layers.

        Args:
            layout: of a block of the groups.

        Raises:
            ConfigurationError: blocks are so small that the states take too many. The message says what would do.
        """
        if (count := self._num_groups(layout, block_size)) <= GROUPS_MAX:
            return groups.with_states(count)
        enough = 2 * block_size
        while self._num_groups(layout, enough) > GROUPS_MAX:
            enough *= 2
        raise ConfigurationError(
            f"block_size is {block_size}, and the states of a sequence's {len(self._sizes)} recurrent layers, "
            f"{sum(self._sizes) / 2**20:.1f} MiB, would take {count} blocks of as many tokens' keys and values; "
            f"expected at least {enough}"
        )

    def _num_groups(self, layout: KVLayout, block_size: int) -> int:
        """Return how many groups of blocks the states of all layers take."""
        page_bytes = prod(layout.shape(1, block_size)) * layout.dtype.itemsize
        pages = sum(-(-size // page_bytes) for size in self._sizes)
        return -(-pages // (layout.num_layers * (1 + layout.has_values)))

    def allocate_beside(self, num_blocks: int, device: torch.device) -> list[KVCache]:
        """Return memory for the states of all layers beside keys and values, where one group has all."""
        nothing = torch.empty(num_blocks, 1, 1, 0, dtype=torch.uint8, device=device)
        return [
            (memory.zeros((num_blocks, 1, 1, size), torch.uint8, device), nothing) for size in self._sizes
        ]

    def forget(self) -> None:
        """Let go of the memory that states were last seen in."""
        self._states = None

    def between(
        self,
        places: Iterator[tuple[AttentionBatch, KVCache]],
        batch: AttentionBatch,
        caches: Sequence[KVCache],
        groups: LayerGroups,
    ) -> Iterator[tuple[Any, Any]]:
        """Return for each layer its part of a step and its own memory: `places` are those of layers that attend.

        A layer that attends and is recurrent gets `Both` of each; one that is neither, None.
        """
        states = iter(self._in(caches, groups))
        tables = [one.block_tables for one in batch.groups[-groups.num_states or None :]]
        if not groups.num_states:
            tables = tables[:1]
        of_step = make_state_batch(batch, torch.stack(tables), caches[0][0].shape[2])
        for layer in self._layers:
            if layer.recurrent is None:
                yield next(places) if layer.attends else (None, None)
            elif layer.attends:
                of_group, cache = next(places)
                yield Both(of_group, of_step), Both(cache, next(states))
            else:
                yield of_step, next(states)

    def _in(self, caches: Sequence[KVCache], groups: LayerGroups) -> list[LayerState]:
        """Return the states of all layers in the memory of caches."""
        if self._states is None or self._states[0] is not caches:
            self._states = caches, self._find(caches, groups)
        return self._states[1]

    def _find(self, caches: Sequence[KVCache], groups: LayerGroups) -> list[LayerState]:
        if not groups.num_states:
            beside = caches[groups.layers_per_block : groups.layers_per_block + len(self._recurrent)]
            pages: list[tuple[Page, ...]] = [(Page(0, keys.flatten(1)),) for keys, _ in beside]
        else:
            pages = _share_out(self._sizes, _pages_of(caches[: groups.layers_per_block]))
        return [
            LayerState.of(spec, self._dtype, own) for spec, own in zip(self._recurrent, pages, strict=True)
        ]


def _pages_of(caches: Sequence[KVCache]) -> list[Tensor]:
    """Return the pages of a block, uint8 [num_blocks, bytes] each and alike."""
    return [
        part.view(part.shape[0], -1).view(torch.uint8) for cache in caches for part in cache if part.shape[-1]
    ]


def _share_out(sizes: Sequence[int], memories: Sequence[Tensor]) -> list[tuple[Page, ...]]:
    """Give each layer's state whole pages: those of the first group's block in order, then of the second's."""
    page_bytes, shared, used = prod(memories[0].shape[1:]), [], 0
    for size in sizes:
        count = -(-size // page_bytes)
        shared.append(
            tuple(
                Page(number // len(memories), memories[number % len(memories)])
                for number in range(used, used + count)
            )
        )
        used += count
    return shared
