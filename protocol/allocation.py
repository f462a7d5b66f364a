"""scheduler ──Assign──▶ blocks ──Assigned──▶ scheduler: one exchange per step about KV memory.

The scheduler says what it would like to compute; the manager decides what there is room for. Within an
`Assign` the order is: what was not computed is withdrawn, tokens become known, sequences are freed, running ones grow,
new ones are admitted.
Grants are given in the order asked; from the first that does not fit, all later ones are refused (a
suffix), so that a policy's order is never overtaken by a smaller request. An admission may also be refused
while what is cached of it comes back from below the device, beside what is granted.

`epoch` is the incarnation of the executor group whose memory this is, `manager` that of the block manager
that the scheduler believes to speak with. An exchange about another epoch's memory, or one that reaches
another manager than was meant, is answered with everything refused: what it would name is not computed.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32, int64
from pageant.protocol.message import Message, Request
from pageant.protocol.tiers import BlockMoves, TierStatistics


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence to be admitted, with all tokens known of it.

    What is found of it in the cache is not computed again, but for the last token, whose logits are
    wanted. It is refused unless the pool has room for all of its tokens (but what windows let go), so that a sequence
    is not admitted only to be preempted by its own next chunk. At most `num_tokens_max` of them are computed in this
    step. With `skip_cache` nothing of it is looked for: all of its tokens' logits are wanted. `is_again` says that it
    was admitted before: what is found of it then is its own, and counts neither as looked up nor as a hit.
    Sequences share memory only if `salt` (a tenant's), `extra_keys` (what else their KV depends on, as
    its user says) and `adapter` (that computes it) are equal.
    """

    serial: int
    token_ids: Int32Vector
    salt: str | None = None
    extra_keys: tuple[str, ...] = ()
    num_tokens_max: int | None = None
    skip_cache: bool = False
    adapter: str | None = None
    is_again: bool = False


class Assign(Message, frozen=True, kw_only=True):
    """What step `step` would like. Of sequence `withdrawn_serials[i]` no more than `withdrawn_lengths[i]` tokens have
    been computed, whatever was granted before. Of sequence `learned_serials[i]`, `learned_counts[i]` new tokens are
    next in `token_ids`: drawn since the last exchange, they name its blocks as they fill up. `freed` ones are
    given up. Sequence `grow_serials[i]` is to have slots for `grow_lengths[i]` tokens, the last `grow_drafts[i]` of
    which (none, where there is no such column) are guesses: what is computed there may be wrong. Admissions may
    together compute `admission_tokens` tokens in this step, given out in order; one for which none is left
    is refused. The steps up to `computed_step` have been computed. No sequence computes more than `chunk_max` tokens in
    a step, which says how much it ever holds at once where layers have windows; None says nothing.
    """

    step: int
    epoch: int
    computed_step: int
    learned_serials: Int64Vector
    learned_counts: Int32Vector
    token_ids: Int32Vector
    freed: Int64Vector
    grow_serials: Int64Vector
    grow_lengths: Int32Vector
    grow_drafts: Int32Vector = msgspec.field(default_factory=int32)
    admissions: tuple[Admission, ...]
    admission_tokens: int
    manager: int = 0
    chunk_max: int | None = None
    withdrawn_serials: Int64Vector = msgspec.field(default_factory=int64)
    withdrawn_lengths: Int32Vector = msgspec.field(default_factory=int32)


class Admitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A granted admission: its block table, how many tokens of it are cached already (in blocks that it
    shares, or that are copied or restored for it), and how many after those are to be computed in this step (its
    slots reach that far). Of those cached, `num_restored_tokens` come from below the device. Where layers are in
    several groups (see `ExecutorReady`), the table has a block of each for every `block_size` tokens, next to each
    other; and with a window, what it says of blocks that the first of these tokens does not reach means nothing."""

    serial: int
    blocks: Int32Vector
    num_cached_tokens: int
    num_tokens: int
    num_restored_tokens: int = 0


class Assigned(Message, frozen=True, kw_only=True):
    """What is granted of `Assign` number `step`.

    The first `num_grown` of the sequences that were to grow did; row i of them got the next
    `grown_counts[i]` of `grown_blocks`. `admitted` are the first of the admissions. Before the step computes,
    blocks `copy_sources` are copied to `copy_destinations`: all reads come before all writes. There are `moves`
    only where something is granted.
    """

    step: int
    epoch: int
    num_grown: int
    grown_counts: Int32Vector
    grown_blocks: Int32Vector
    admitted: tuple[Admitted, ...]
    copy_sources: Int32Vector = msgspec.field(default_factory=int32)
    copy_destinations: Int32Vector = msgspec.field(default_factory=int32)
    blocks_free: int
    num_blocks: int
    moves: BlockMoves | None = None


class PoolReady(Message, frozen=True, kw_only=True):
    """blocks to scheduler: the pool of this epoch is ready, and empty if epoch or sender are new.

    Sent whenever the pool is made, and when a scheduler comes up.
    """

    epoch: int


class PoolStatistics(Message, frozen=True, kw_only=True):
    """The pool as it is now. Blocks: total = free + held; `cached` of the free ones still hold a prefix.

    Of the tokens admitted so far (`queried`), `hit` were in the cache, `copied` ones of them in a block that
    was shared in part; `blocks_copied` blocks were. `slots_wasted` of the held blocks hold no token: less than a
    block per sequence and group of layers. Sequences that go on gave back `blocks_given_back`, which no window reaches
    any more. Of those that came back from below, `blocks_restored_ahead` did so beside steps before the one that wanted
    them.
    """

    num_blocks: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    tokens_queried: int
    tokens_hit: int
    evictions: int
    tokens_copied: int = 0
    slots_wasted: int = 0
    sequences: int = 0
    tiers: tuple[TierStatistics, ...] = ()
    blocks_copied: int = 0
    blocks_given_back: int = 0
    blocks_restored_ahead: int = 0


class GetPoolStatistics(Request[PoolStatistics], frozen=True, kw_only=True):
    """Ask the block manager how the pool stands."""
