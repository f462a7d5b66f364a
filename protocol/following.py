"""Subscriptions to the KV blocks of an engine, for routers that send a request to where its prefix is, and
for observers.

    anyone ──FollowBlocks──▶ blocks ──BlockEvents, BlockEvents, ...──▶ follower

A block's hash is chained over all tokens before it (`pageant.protocol.block_names`). A router that knows a
prompt's tokens, its salt and the block size can compute the hashes to look for. A router with hashes of its
own finds the block's tokens and its parent in the event. Followers get the net change after each exchange of
the scheduler with the block manager. A follower that falls behind gets later changes merged into one message.
A block is announced when its tokens are granted, one step before they are computed. Where layers are in
groups, only the blocks of the first group are announced: it reaches furthest.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.message import Message, Request


class StoredBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that can be found from now on."""

    tier: str
    """`device`, `host` or `disk`."""
    name: bytes
    """The block's hash."""
    parent: bytes | None = None
    """The hash of the block before it; None for the first."""
    token_ids: Int32Vector | None = None
    """int32 [tokens]: the tokens of this block alone. Given for the device's blocks only: blocks of lower
    tiers were on the device first. Negative ids stand for embeddings, and mean nothing to others.
    """


class RemovedBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that is no longer in this tier. It may still be in another."""

    tier: str
    name: bytes


class BlockEvents(Message, frozen=True, kw_only=True):
    """Changes since the last message to this follower. `removed` happened before `stored`."""

    epoch: int
    """The executor whose memory holds the blocks. Memory of another epoch is another executor's."""
    block_size: int
    """Tokens in a full block. A partly filled block holds fewer, and no block has it as parent."""
    stored: tuple[StoredBlock, ...]
    """Blocks that can be found from now on."""
    removed: tuple[RemovedBlock, ...]
    """Blocks that were removed, before any of `stored` came."""
    reset: bool = False
    """Everything that was announced before is void."""


class FollowBlocks(Request[BlockEvents], frozen=True, kw_only=True):
    """Stream from the block manager: all blocks that there are, and then every change."""

    tokens: bool = True
    """Give the tokens of each block. Whoever has prompts of its own needs the names alone."""
