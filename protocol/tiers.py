"""KV blocks below the device: what is moved between it, the host's memory and the disk.

    blocks ──BlockMoves──▶ executor/*     in `Assigned` and, by way of the scheduler, in `StepPlan`
    executor/0 ──MoveTimes──▶ blocks      now and then: what steps and moves take

The block manager knows what lies where, and decides; the executors move bytes. What lies below is an array of
slots, each as large as a block: of the host's memory, and from `DISK` on of the disk. Every rank of a group has one
of its own, of its own shards, and moves the same slots. Moves are ordered with the plans that bring them, so that
whatever a later exchange decides about a slot or a block finds the moves of earlier ones made.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Vector, Int32Vector, int32
from pageant.protocol.message import Message

DISK = 2**30  # the first slot of the disk


class BlockMoves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is moved beside one step.

    Block `save_blocks[i]` is copied to slot `save_slots[i]`, of the host; the first `num_urgent` of those blocks
    are somebody else's from this step on. Slot `restore_slots[i]` is copied to block `restore_blocks[i]`; the first
    `num_needed` of those blocks are read by this step. Slot `spill_slots[i]`, of the host, is copied to
    `spill_to[i]`, of the disk. First come the urgent saves and then what is needed, before anything else of the
    plan, in the order given; perhaps while the step before computes, so that no block that is restored is copied
    from by the same plan. The others are moved before the next step computes: what is spilled, what is saved, and
    what is restored, in this order.
    """

    save_blocks: Int32Vector
    save_slots: Int32Vector
    num_urgent: int
    restore_slots: Int32Vector
    restore_blocks: Int32Vector
    num_needed: int
    spill_slots: Int32Vector = msgspec.field(default_factory=int32)
    spill_to: Int32Vector = msgspec.field(default_factory=int32)


class Moved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many blocks were moved in so many seconds."""

    blocks: int = 0
    seconds: float = 0.0


class MoveTimes(Message, frozen=True, kw_only=True):
    """What the executor's last steps took, and the moves since it said so last.

    Step i computed `step_tokens[i]` tokens in `step_seconds[i]`. Blocks were moved between the device and the `host`'s
    memory, either way, were `written` to the disk from there, or `read` from the disk to the device.
    """

    epoch: int
    step_tokens: Int32Vector
    step_seconds: Float32Vector
    host: Moved = Moved()
    written: Moved = Moved()
    read: Moved = Moved()


class TierStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tier below the device, as it is now: `blocks_used` of `num_blocks` hold something.

    `blocks_saved` came from the tier above, `blocks_restored` went to the device. `tokens_hit` of those queried were
    found here. Of what was given up to make room, nothing lower down had kept `blocks_lost`.
    """

    name: str
    num_blocks: int
    blocks_used: int
    blocks_saved: int
    blocks_restored: int
    blocks_lost: int
    tokens_hit: int
