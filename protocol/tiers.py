"""KV blocks below the device: moves between it, the host's memory and the disk.

    blocks ──BlockMoves──▶ executor/*     in `Assigned` and, by way of the scheduler, in `StepPlan`
    executor/0 ──MoveTimes──▶ blocks      now and then: the times of steps and moves

The block manager knows what lies where, and decides; the executors move bytes. Lower tiers are an array of
slots, each as large as a block: slots of the host's memory, and from `DISK` on slots of the disk. Every rank
of a group has such an array for its own shards, and moves the same slots. Moves are ordered with the plans
that bring them. A later exchange about a slot or a block therefore finds the moves of earlier ones done.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Vector, Int32Vector, int32
from pageant.protocol.message import Message

# The first slot of the disk. Slots below it are the host's.
DISK = 2**30


class BlockMoves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moves of blocks beside one step.

    The executor makes the urgent saves first and the needed restores second, before anything else of the
    plan, in the order given. It may make them while the step before computes; no block that is restored is
    copied from by the same plan. It makes the other moves before the next step computes: spills, then saves,
    then restores.
    """

    save_blocks: Int32Vector
    """int32 [S]: blocks to copy to the host."""
    save_slots: Int32Vector
    """int32 [S]: the host's slots that receive them."""
    num_urgent: int
    """The first `num_urgent` of `save_blocks` belong to other sequences from this step on."""
    restore_slots: Int32Vector
    """int32 [R]: slots of the host or the disk to copy to the device."""
    restore_blocks: Int32Vector
    """int32 [R]: the blocks that receive them."""
    num_needed: int
    """This step reads the first `num_needed` of `restore_blocks`."""
    spill_slots: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [P]: slots of the host to copy to the disk."""
    spill_to: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [P]: the disk's slots that receive them."""


class Moved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of blocks that were moved, and the seconds that it took."""

    blocks: int = 0
    seconds: float = 0.0


class MoveTimes(Message, frozen=True, kw_only=True):
    """Times of the executor's last steps, and of the moves since the last such message."""

    epoch: int
    step_tokens: Int32Vector
    """int32 [N]: tokens of each step."""
    step_seconds: Float32Vector
    """float32 [N]: the time of each step."""
    host: Moved = Moved()
    """Moves between the device and the host's memory, in either direction."""
    written: Moved = Moved()
    """Moves from the host's memory to the disk."""
    read: Moved = Moved()
    """Moves from the disk to the device."""


class TierStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tier below the device."""

    name: str
    num_blocks: int
    blocks_used: int
    """Slots that hold a block."""
    blocks_saved: int
    """Blocks that came from the tier above."""
    blocks_restored: int
    """Blocks that went to the device."""
    blocks_lost: int
    """Blocks that were evicted here and that no lower tier had."""
    tokens_hit: int
    """Queried tokens that were found here."""
