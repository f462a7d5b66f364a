"""scheduler ──Assign──▶ blocks ──Assigned──▶ scheduler: one exchange per step about KV memory.

The scheduler asks for memory, and the block manager grants what the pool has room for. The manager processes
an `Assign` in this order: it withdraws tokens that were not computed, records tokens that became known, frees
sequences, grows running sequences, and admits new ones. It grants in the order asked. After the first request
that does not fit it refuses all later ones, so that a smaller request never overtakes the policy's order. The
manager may also refuse an admission while cached blocks of it are being restored from a lower tier; those
moves run beside the granted work.

`epoch` is the incarnation of the executor group whose memory is meant. `manager` is the incarnation of the
block manager that the scheduler knows. A manager refuses everything in an exchange about another epoch, or in
one that was meant for another manager, and the scheduler computes nothing of it.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector, UInt8Vector, int32, int64
from pageant.protocol.embedding import longest_run, uncut
from pageant.protocol.message import Message, Request
from pageant.protocol.tiers import BlockMoves, TierStatistics


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that asks for admission, with all of its known tokens.

    The manager looks up the tokens in the prefix cache. Cached tokens are not computed again, except the last
    token, whose logits are wanted. The manager refuses an admission unless the pool has room for all of its
    tokens (less those that attention windows free). A sequence that is admitted is therefore not preempted by
    its own next chunk.
    """

    serial: int
    """The scheduler's number of the sequence, never used twice within an incarnation."""
    token_ids: Int32Vector
    """int32 [tokens]: prompt and output so far."""
    salt: str | None = None
    """Sequences share blocks only if their salts are equal. Belongs to a tenant."""
    extra_keys: tuple[str, ...] = ()
    """Further values that the KV depends on, by the user's word. Shared blocks need equal ones."""
    num_tokens_max: int | None = None
    """The most tokens of this sequence to compute in this step; None sets no bound."""
    skip_cache: bool = False
    """Look nothing up: the logits of all tokens are wanted."""
    adapter: str | None = None
    """The adapter that computes the sequence. Shared blocks need the same one."""
    is_again: bool = False
    """The sequence was admitted before. Cached tokens are then its own, and count neither as queried nor as
    hit.
    """
    embed_names: UInt8Vector | None = None
    """uint8 [n * 16]: the names of embeddings that the first n tokens are placeholders of (see `PromptEmbeds`).
    Shared blocks need equal names there.
    """
    embed_places: Int32Vector | None = None
    """int32 [n]: the tokens that are such placeholders, where they are not the first n."""
    embed_whole: bool = False
    """Such tokens that stand next to each other are computed in one step (see `PromptEmbeds`)."""

    def fits(self, budget: int) -> bool:
        """Tell whether a step that computes at most so many tokens can compute some of this sequence."""
        if not self.embed_whole or self.embed_places is None:
            return budget > 0
        return budget >= max(1, longest_run(self.embed_places))

    def chunk(self, start: int, budget: int) -> int:
        """Return how many tokens, at most `budget`, one step computes from `start` on."""
        end = min(start + budget, len(self.token_ids))
        if self.embed_whole and self.embed_places is not None:
            end = uncut(self.embed_places, start, end)
        return end - start


class Assign(Message, frozen=True, kw_only=True):
    """Ask the block manager for the memory of step `step`.

    Columns whose names share a prefix have one entry per sequence and equal lengths.
    """

    step: int
    """The number of the step."""
    epoch: int
    """The incarnation of the executor group whose memory is meant."""
    computed_step: int
    """All steps up to this number have been computed."""
    learned_serials: Int64Vector
    """int64 [L]: sequences with tokens that were sampled since the last exchange."""
    learned_counts: Int32Vector
    """int32 [L]: the number of new tokens of each."""
    token_ids: Int32Vector
    """int32 [sum of learned_counts]: the new tokens, sequence by sequence. Full blocks get their hashes from
    them.
    """
    freed: Int64Vector
    """int64 [F]: sequences whose blocks are freed."""
    grow_serials: Int64Vector
    """int64 [G]: running sequences that need slots for more tokens, in the policy's order."""
    grow_lengths: Int32Vector
    """int32 [G]: the number of tokens that each is to have slots for."""
    grow_drafts: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [G], or empty for no drafts: how many of the last tokens are drafts, whose KV may turn out wrong.
    """
    admissions: tuple[Admission, ...]
    """New sequences, in the policy's order."""
    admission_tokens: int
    """The token budget of all admissions together, given out in order. An admission that finds none left is
    refused.
    """
    manager: int = 0
    """The incarnation of the block manager that this is meant for; 0 does not say."""
    chunk_max: int | None = None
    """The most tokens that any sequence computes in a step. Bounds the blocks that a sequence holds at once
    where layers have windows; None sets no bound.
    """
    withdrawn_serials: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [W]: sequences of which granted tokens were not computed."""
    withdrawn_lengths: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [W]: the most tokens of each that have been computed, whatever was granted before."""


class Admitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A granted admission."""

    serial: int
    """The number of the sequence."""
    blocks: Int32Vector
    """int32 [blocks]: the block table. Where layers are in several groups (see `ExecutorReady`), every
    `block_size` tokens have one block of each group, next to each other. Entries of blocks that lie before
    the window of the first computed token mean nothing.
    """
    num_cached_tokens: int
    """Tokens that need no computation: they lie in blocks that are shared, copied or restored."""
    num_tokens: int
    """Tokens to compute in this step, after the cached ones. The block table has slots for them."""
    num_restored_tokens: int = 0
    """Cached tokens that come from a tier below the device."""


class Assigned(Message, frozen=True, kw_only=True):
    """Tell the scheduler what was granted of `Assign` number `step`."""

    step: int
    """The number of the `Assign`."""
    epoch: int
    """The incarnation of the executor group whose memory was granted."""
    num_grown: int
    """The number of sequences, from the first of `grow_serials` on, that were granted."""
    grown_counts: Int32Vector
    """int32 [num_grown]: the number of new blocks of each."""
    grown_blocks: Int32Vector
    """int32 [sum of grown_counts]: the new blocks, sequence by sequence."""
    admitted: tuple[Admitted, ...]
    """The admissions that were granted: the first ones of `Assign.admissions`."""
    copy_sources: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: blocks to copy before the step computes. All are read before any is written."""
    copy_destinations: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: the blocks that receive the copies."""
    blocks_free: int
    """Free blocks of the pool after this exchange."""
    num_blocks: int
    """All blocks of the pool."""
    moves: BlockMoves | None = None
    """Blocks to move between tiers beside this step. Present only where something was granted."""
    awaits_stored: bool = False
    """The first refused admission waits for blocks that come from a store, or for those that copies to or from it
    hold. `StoredBlocksArrived` says when to ask again.
    """


class PoolReady(Message, frozen=True, kw_only=True):
    """blocks to scheduler: the pool of this epoch is ready. It is empty if the epoch or the sender is new.

    The manager sends this whenever it makes the pool, and when a scheduler comes up.
    """

    epoch: int


class PoolStatistics(Message, frozen=True, kw_only=True):
    """The state of the pool, with counters since it was made."""

    num_blocks: int
    """All blocks: free ones and held ones."""
    blocks_free: int
    """Blocks that no sequence holds."""
    blocks_cached: int
    """Free blocks that still hold a cached prefix."""
    blocks_held: int
    """Blocks that at least one sequence holds."""
    tokens_queried: int
    """Tokens of all admissions so far."""
    tokens_hit: int
    """Queried tokens that were cached."""
    evictions: int
    """Cached blocks that were reused for other tokens."""
    tokens_copied: int = 0
    """Hit tokens that lay in a partly shared block, which was copied."""
    slots_wasted: int = 0
    """Slots of held blocks without a token: fewer than a block per sequence and layer group."""
    sequences: int = 0
    """Sequences that hold blocks."""
    tiers: tuple[TierStatistics, ...] = ()
    """The tiers below the device."""
    blocks_copied: int = 0
    """Blocks that were copied for a sequence."""
    blocks_given_back: int = 0
    """Blocks that running sequences freed because no window reaches them any more."""
    blocks_restored_ahead: int = 0
    """Blocks that were restored during steps before the one that needed them."""


class GetPoolStatistics(Request[PoolStatistics], frozen=True, kw_only=True):
    """Ask the block manager for the state of its pool."""
