"""KV blocks below the device: what is moved between it and the host's memory.

    blocks ──BlockMoves──▶ executor/*     in `Assigned` and, by way of the scheduler, in `StepPlan`
    executor/0 ──MoveTimes──▶ blocks      now and then: what steps and moves take

The block manager knows what lies where, and decides; the executors move bytes. Host memory is an array of
slots, each as large as a block; every rank of a group has one of its own, of its own shards, and moves the same
slots. Moves are ordered with the plans that bring them, so that whatever a later exchange decides about a slot
or a block finds the moves of earlier ones made.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Vector, Int32Vector
from pageant.protocol.message import Message


class BlockMoves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is moved beside one step.

    Block `save_blocks[i]` is copied to the host's slot `save_slots[i]`; the first `num_urgent` of those blocks
    are somebody else's from this step on. Slot `restore_slots[i]` is copied to block `restore_blocks[i]`. First
    come the urgent saves and then the restores, before anything else of the plan, in the order given; perhaps
    while the step before computes, so that no block that is restored is copied from by the same plan. The other
    saves are made before the next step computes.
    """

    save_blocks: Int32Vector
    save_slots: Int32Vector
    num_urgent: int
    restore_slots: Int32Vector
    restore_blocks: Int32Vector


class MoveTimes(Message, frozen=True, kw_only=True):
    """What the executor's last steps took, and the moves since it said so last.

    Step i computed `step_tokens[i]` tokens in `step_seconds[i]`; `num_moved` blocks were copied between the
    device and the host in `move_seconds`.
    """

    epoch: int
    step_tokens: Int32Vector
    step_seconds: Float32Vector
    num_moved: int
    move_seconds: float


class TierStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tier below the device, as it is now: `blocks_used` of `num_blocks` hold something.

    `blocks_saved` came from the tier above, `blocks_restored` went back. `tokens_hit` of those queried were found
    here. Of what was given up to make room, nothing lower down had kept `blocks_lost`.
    """

    name: str
    num_blocks: int
    blocks_used: int
    blocks_saved: int
    blocks_restored: int
    blocks_lost: int
    tokens_hit: int
