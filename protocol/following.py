"""Who wants to know which KV blocks an engine holds: routers that send a request where its prefix is, observers.

    anybody ──FollowBlocks──▶ blocks ──BlockEvents, BlockEvents, ...──▶ whoever follows

A block's name is a chained hash of everything before it (`pageant.actors.blocks.hashing`), so that whoever knows a
prompt's tokens, its salt and the size of a block knows the names to look for; those who name blocks otherwise find
its tokens and its parent with it. Followers are told after each exchange, of what changed on the whole; one that
falls behind is told later, and all at once. A block is told of when its tokens are granted, a step before they are
computed. Where layers are in groups, the first group's blocks are told of, which reaches furthest.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.message import Message, Request


class StoredBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that can be found from now on, in a tier: `device`, `host` or `disk`.

    `token_ids` are those that it holds after all that `parent`, the name of the block before it, stands for. They are
    told with the device's blocks only: what lies below was there first.
    """

    tier: str
    name: bytes
    parent: bytes | None = None
    token_ids: Int32Vector | None = None


class RemovedBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that is there no more; perhaps in another tier."""

    tier: str
    name: bytes


class BlockEvents(Message, frozen=True, kw_only=True):
    """What changed since the last one; with `reset`, nothing that was told before is true any more. What is `removed`
    was so before any of `stored` came. Blocks hold `block_size` tokens, but for partly filled ones, whose names no
    block follows. Memory of another `epoch` is another executor's."""

    epoch: int
    block_size: int
    stored: tuple[StoredBlock, ...]
    removed: tuple[RemovedBlock, ...]
    reset: bool = False


class FollowBlocks(Request[BlockEvents], frozen=True, kw_only=True):
    """Stream from the block manager: all that there is, and then every change."""
