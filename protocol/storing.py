"""blocks ──Reserve, Pin, Settle──▶ store; store ──StoreEvents──▶ blocks; blocks ──MoveStored──▶ executor/0.

A store keeps KV blocks in memory that the executors of its host share (`pageant.protocol.arena`). Block managers
decide, executors copy, and the store says which slot holds what.

    blocks ──FollowStore──▶ store ──StoreEvents, ...──▶ blocks     which blocks there are, or are being saved
    blocks ──Reserve──▶ store ──Reserved──▶ blocks                 slots to save blocks in
    blocks ──Pin──▶ store ──Pinned──▶ blocks                       slots that keep their blocks until they are settled
    blocks ──MoveStored──▶ executor/0 ──StoredMoved──▶ blocks      the copies; executor/0 has each rank copy its share
    blocks ──Settle──▶ store                                       what became of reserved and pinned slots

A block can be found from its reservation on, and `Pin` waits until it is saved. Reservations and pins belong to an
incarnation of their block manager, and end with it. A slot has another generation with each reservation. Whoever
copies checks name and generation in the slot's header before and after, so that a block is used only if it is whole.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.arrays import BoolVector, Int32Vector, Int64Vector, UInt8Vector, bools
from pageant.protocol.message import Message, Request

NO_SLOT = -1
"""Fills the entries of slots where there is none."""


class ArenaRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of a store, for processes of its host."""

    path: str
    """The file to map."""
    num_bytes: int
    epoch: int
    """The store's incarnation."""


class StoreEvents(Message, frozen=True, kw_only=True):
    """Changes since the last message to this follower. Names are 16 bytes each, one after another."""

    arena: ArenaRef
    stored: UInt8Vector
    """uint8 [16 * S]: blocks that can be pinned from now on."""
    removed: UInt8Vector
    """uint8 [16 * R]: blocks that are gone, before any of `stored` came."""
    reset: bool = False
    """Everything that was announced before is void."""


class FollowStore(Request[StoreEvents], frozen=True, kw_only=True):
    """Stream the names of blocks of one kind: all that there are, and then every change."""

    kind: bytes
    """The executors' `StoredLayout.kind`. Names of other kinds are not announced."""


class Reserved(Message, frozen=True, kw_only=True):
    """Slots for the blocks of a `Reserve`."""

    slots: Int64Vector
    """int64 [N]: the first byte of each slot; NO_SLOT where the block is there already, or there is no room."""
    generations: Int64Vector
    """int64 [N]."""


class Reserve(Request[Reserved], frozen=True, kw_only=True):
    """Ask for slots to save N blocks in."""

    kind: bytes
    names: UInt8Vector
    """uint8 [16 * N]."""
    slot_bytes: int


class Pinned(Message, frozen=True, kw_only=True):
    """The slots of the blocks of a `Pin`, once each is saved or gone."""

    slots: Int64Vector
    """int64 [N]: the first byte of each slot; NO_SLOT where the block is gone."""
    generations: Int64Vector
    """int64 [N]."""


class Pin(Request[Pinned], frozen=True, kw_only=True):
    """Ask for the slots of N blocks, which keep them until they are settled."""

    names: UInt8Vector
    """uint8 [16 * N]."""


class Settle(Message, frozen=True, kw_only=True):
    """Say what became of slots that the sender has reserved or pinned."""

    slots: Int64Vector
    """int64 [N]."""
    generations: Int64Vector
    """int64 [N]."""
    ok: BoolVector
    """bool [N]: the block was saved; or, of a pinned slot, it held what its name says."""


class ForgetStored(Message, frozen=True, kw_only=True):
    """Forget all blocks of a kind."""

    kind: bytes


class StoredMoved(Message, frozen=True, kw_only=True):
    """Outcome of the copies of a `MoveStored`."""

    ok: BoolVector
    """bool [N]: the block was copied whole, by every rank."""
    seconds: float = 0.0
    """Time that the copies took."""
    stale: bool = False
    """Nothing was copied: the scheduler that was meant is gone."""


class MoveStored(Request[StoredMoved], frozen=True, kw_only=True):
    """Copy N blocks between the device and a store, when all plans up to that of exchange `step` are computed.

    No later plan writes to these blocks, nor reads those that are restored, before this is answered.
    """

    way: Literal["save", "restore"]
    epoch: int
    """The incarnation of the executor whose blocks are meant: another one has given them to others."""
    arena: ArenaRef
    blocks: Int32Vector
    """int32 [N]."""
    names: UInt8Vector
    """uint8 [16 * N]."""
    slots: Int64Vector
    """int64 [N]: the first byte of each slot."""
    generations: Int64Vector
    """int64 [N]."""
    scheduler: int
    """The incarnation of the scheduler whose exchange is meant."""
    step: int
    """Its number; 0 is before the first."""


class MoveShares(Request[StoredMoved], frozen=True, kw_only=True):
    """Copy a follower's share of the blocks of a `MoveStored`. The leader asks when the plans are computed."""

    move: MoveStored


class StoredBlocksArrived(Message, frozen=True, kw_only=True):
    """blocks to scheduler: blocks that an admission waited for are there, or will not come."""


class StoredLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The blocks of an executor, as a store keeps them."""

    kind: bytes
    """16 bytes: equal where blocks of equal names have equal bytes (checkpoint, dtypes, block size, and so on)."""
    slot_bytes: int
    """Bytes of a slot: header, checksums, and a block of all ranks."""


class StoreStatistics(Message, frozen=True, kw_only=True):
    """A store, with counters since its start."""

    num_bytes: int
    """Its memory."""
    bytes_used: int
    """Bytes of slots that hold a block, or are reserved for one."""
    blocks: int
    """Blocks that can be restored."""
    reserved: int
    """Slots that are being written."""
    pinned: int
    """Slots that are being read."""
    saved: int
    """Blocks that were saved."""
    restored: int
    """Blocks that were pinned and found whole."""
    spoilt: int
    """Blocks that were pinned and not found whole."""
    evictions: int
    fetched: int = 0
    """Blocks that came from stores of other hosts."""


class GetStoreStatistics(Request[StoreStatistics], frozen=True, kw_only=True):
    """Ask a store for its state."""


NOTHING_MOVED = StoredMoved(ok=bools(), stale=True)
