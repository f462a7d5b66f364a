"""blocks ──Reserve, Pin, Settle──▶ store; store ──StoreEvents──▶ blocks; blocks ──MoveStored──▶ executor/0.

A store keeps KV blocks in memory that the executors of its host share (`pageant.protocol.arena`). Block managers
decide, executors copy, and the store says which slot holds what.

    blocks ──FollowStore──▶ store ──StoreEvents, ...──▶ blocks     which blocks there are, or are being saved
    blocks ──Reserve──▶ store ──Reserved──▶ blocks                 slots to save blocks in
    blocks ──Pin──▶ store ──Pinned──▶ blocks                       slots that keep their blocks until they are settled
    blocks ──MoveStored──▶ executor/0 ──StoredMoved──▶ blocks      the copies; executor/0 has each rank copy its share
    blocks ──Settle──▶ store                                       what became of reserved and pinned slots

A store follows and pins blocks of other hosts' stores in the same way, and copies them into slots of its own when they
are pinned here.

    store ──FollowStore──▶ store of another host ──StoreEvents, ...──▶ store
    store ──Pin──▶ store of another host ──Pinned──▶ store
    store ──ReadStored──▶ store of another host ──StoredBytes, ...──▶ store     unless another carrier has the bytes
    store ──Settle──▶ store of another host

A block can be found from its reservation on, and `Pin` waits until it is saved. Reservations and pins belong to an
incarnation of their block manager, and end with it. A slot has another generation with each reservation. Whoever
copies checks name and generation in the slot's header before and after, so that a block is used only if it is whole.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import BoolVector, Int32Vector, Int64Vector, UInt8Vector
from pageant.protocol.message import Message, Request

NO_SLOT = -1
"""Fills the entries of slots where there is none."""


def _no_names() -> npt.NDArray[np.uint8]:
    return np.zeros(0, np.uint8)


class StoredLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The blocks of an executor, as a store keeps them."""

    kind: bytes
    """16 bytes: equal where blocks of equal names have equal bytes (checkpoint, dtypes, block size, and so on)."""
    slot_bytes: int
    """Bytes of a slot: header, checksums, and a block of all ranks."""
    num_parts: int = 0
    """Parts of a block, of all ranks; each has a checksum."""
    parts_bytes: int = 0
    """Bytes of all of them."""
    has_words: bool = False
    """Checksums are of 64-bit words; otherwise executors alone can check them."""


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
    away: UInt8Vector = msgspec.field(default_factory=_no_names)
    """uint8 [16 * A]: blocks that can be pinned from now on, but have to be fetched first."""
    not_away: UInt8Vector = msgspec.field(default_factory=_no_names)
    """uint8 [16 * B]: blocks that cannot be fetched any more, before any of `away` came."""
    offer: bytes = b""
    """What the carrier of another host needs to know of this memory."""


class FollowStore(Request[StoreEvents], frozen=True, kw_only=True):
    """Stream the names of blocks of one kind: all that there are, and then every change."""

    kind: bytes
    """The executors' `StoredLayout.kind`. Names of other kinds are not announced."""
    layout: StoredLayout | None = None
    """How these blocks lie in a slot, so that the store can fetch some from other hosts. None follows this store's own
    blocks alone, and names as `stored` what has to be fetched first."""


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
    fetched: int = 0
    """How many of them had to be fetched."""
    seconds: float = 0.0
    """Time that this took."""


class Pin(Request[Pinned], frozen=True, kw_only=True):
    """Ask for the slots of N blocks, which keep them until they are settled."""

    names: UInt8Vector
    """uint8 [16 * N]."""
    kind: bytes = b""
    """The kind of blocks that may be fetched from other hosts; if empty, none is."""
    patience: float | None = None
    """Seconds to wait for what has to be fetched, or is being saved: the rest is gone. None sets no bound."""


class StoredBytes(Message, frozen=True, kw_only=True):
    """The next bytes of a `ReadStored`."""

    data: UInt8Vector
    """uint8 [B]: valid until the reader settles the slots that they are of."""


class ReadStored(Request[StoredBytes], frozen=True, kw_only=True):
    """Stream N regions of a store's memory, one after another."""

    epoch: int
    """The store's incarnation: another one has other memory."""
    starts: Int64Vector
    """int64 [N]: the first byte of each region."""
    sizes: Int64Vector
    """int64 [N]: its bytes."""


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
    """blocks to scheduler: blocks that an admission waited for are there, or will not come, or are free again."""


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
    fetched_bytes: int = 0
    """Bytes of their slots."""
    fetch_seconds: float = 0.0
    """Time that fetches took, failed ones included."""
    unfetched: int = 0
    """Blocks that were to come and did not: too late, not whole, or gone with their store."""
    served: int = 0
    """Blocks that stores of other hosts have pinned here."""
    disk_bytes: int = 0
    """The room that it has on the disk."""
    disk_blocks: int = 0
    """Blocks that are there. They may be in its memory too."""
    spilled: int = 0
    """Blocks that were written there."""
    loaded: int = 0
    """Blocks that came back from there."""
    unloaded: int = 0
    """Blocks that were to come back from there, and were not whole."""
    disk_evictions: int = 0
    """Blocks that gave way to others there."""


class GetStoreStatistics(Request[StoreStatistics], frozen=True, kw_only=True):
    """Ask a store for its state."""
