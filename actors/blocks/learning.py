"""Learning: sampled tokens fill the tails of sequences, and full tails become blocks with names."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy as np

from pageant.actors.blocks.columns import Columns, rounds
from pageant.actors.blocks.partial_blocks import TOKEN_BYTES
from pageant.actors.blocks.prefixes import Prefixes
from pageant.actors.blocks.sequence import Filled, Sequence
from pageant.protocol.allocation import Assign
from pageant.protocol.arrays import Int32Vector
from pageant.protocol.block_names import block_name


class Learning:
    """Takes sampled tokens, and names the blocks of one manager's sequences.

    Owns nothing: its parts belong to the `Allocation`.

    Args:
        columns: of the sequences.
        prefixes: index of the blocks that have names.
        sequences: open ones by serial; the manager adds and removes them.
    """

    def __init__(self, columns: Columns, prefixes: Prefixes, sequences: Mapping[int, Sequence]) -> None:
        self._columns, self._prefixes, self._sequences = columns, prefixes, sequences
        self._block_size = prefixes.block_size

    def learn(self, request: Assign) -> None:
        """Record sampled tokens, which name the blocks that they fill. Those of unknown sequences are passed over."""
        if not len(request.learned_serials):
            return
        if int(request.learned_counts.max()) > 1:
            self._learn_runs(request)
            return
        serials = np.repeat(request.learned_serials, request.learned_counts)
        slots = self._columns.find(serials)
        there = slots >= 0
        serials, slots, token_ids = serials[there], slots[there], request.token_ids[there]
        for places in rounds(slots):
            due = self._columns.learn(slots[places], token_ids[places])
            if len(due):
                self._open_and_fill([self._sequences[serial] for serial in serials[places[due]].tolist()])

    def _learn_runs(self, request: Assign) -> None:
        """Record several tokens of a sequence at a time."""
        filled: list[Filled] = []
        start = 0
        ends = np.cumsum(request.learned_counts).tolist()
        for serial, end in zip(request.learned_serials.tolist(), ends, strict=True):
            sequence = self._sequences.get(serial)
            if sequence is not None:
                filled += self._append(sequence, request.token_ids[start:end])
            start = end
        self._prefixes.index(filled)

    def _append(self, sequence: Sequence, token_ids: Int32Vector) -> list[Filled]:
        """Append tokens to a sequence, int32 [N]. Return what the caller must index now."""
        filled: list[Filled] = []
        while len(token_ids):
            count = self._columns.extend_tail(sequence.slot, token_ids)
            token_ids = token_ids[count:]
            if sequence.is_full:
                self._prefixes.close([sequence])
                filled += self._fill(sequence)
        self._prefixes.open([sequence])
        return filled

    def _open_and_fill(self, sequences: list[Sequence]) -> None:
        """Index sequences whose tails have just got their first token, or their last, or both."""
        self._prefixes.open(sequences)
        filled = [sequence for sequence in sequences if sequence.is_full]
        if filled:
            self._prefixes.close(filled)
            self._prefixes.index(chain.from_iterable(map(self._fill, filled)))

    def _fill(self, sequence: Sequence) -> list[Filled]:
        """Turn a sequence's full tail into a full block group."""
        full = sequence.tail
        sequence.names.append(block_name(sequence.parent(len(sequence.names)), full))
        sequence.contents.append(full)
        self._columns.num_tail[sequence.slot] = 0
        return self.nameable(sequence)

    def nameable(self, sequence: Sequence) -> list[Filled]:
        """Return block groups without a name that are full of known tokens once the granted ones are computed.

        The caller must index them now.
        """
        first, full = sequence.named, min(sequence.granted // self._block_size, len(sequence.names))
        sequence.named = max(first, full)
        self._columns.unnamed[sequence.slot] = sequence.named < len(sequence.names)
        if first >= full:
            return []
        names, contents = sequence.names[first:full], sequence.contents[first:full]
        return [Filled(sequence, first, names, contents, sequence.granted_step, sequence.granted_before)]

    def name_last_block(self, sequence: Sequence, computed_step: int) -> None:
        """Index the partly filled block of a sequence that is freed, for sequences that continue it.

        Args:
            computed_step: the last step that is known to have been computed.
        """
        known = len(sequence.names) * self._block_size + len(sequence.tail) // TOKEN_BYTES
        index, count = divmod(min(known, sequence.granted), self._block_size)
        if count and sequence.granted_step <= computed_step and not self._prefixes.groups.has_states:
            held = sequence.contents[index] if index < len(sequence.contents) else sequence.tail
            tokens = held[: TOKEN_BYTES * count]
            name = block_name(sequence.parent(index), tokens)
            step, before = sequence.granted_step, sequence.granted_before
            self._prefixes.index([Filled(sequence, index, [name], [tokens], step, before)])
